"""Points and results to report on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from undertow.observe.report.points import Point, Results

BANDWIDTHS = (1.0, 2.0, 4.0, 5.0, 10.0, 15.0, 20.0, 40.0)


def point(**changes: Any) -> Point:
    """A calm point of undertow at 10 Gbit/s; give what is different."""
    values: dict[str, Any] = {
        "model": "resnet50",
        "hosts": 4,
        "bandwidth_gbit": 10.0,
        "scale": 1.0,
        "system": "undertow",
        "batch": 32,
        "iteration_s": 0.5,
        "iteration_low_s": 0.49,
        "iteration_high_s": 0.51,
        "compute_s": 0.4,
        "bound_s": 0.45,
        "speedup": 3.2,
        "gain_over_ddp": 1.25,
        "bytes_out_per_host": 153.3e6,
        "cpu_s": 2.5,
        "steps": 100,
        "disagreement": 0.01,
        "origin": "measured",
    }
    return Point(**values | changes)


def timed(iteration_s: float, *, spread: float = 0.0, **changes: Any) -> Point:
    """A point with this median, and quartiles half of `spread` (a fraction) to each side."""
    half_s = iteration_s * spread / 2
    times = {"iteration_low_s": iteration_s - half_s, "iteration_high_s": iteration_s + half_s}
    return point(iteration_s=iteration_s, **times, **changes)


def sweep(bandwidths: Sequence[float | None] = BANDWIDTHS, **changes: Any) -> list[Point]:
    """ddp and undertow at every bandwidth: 0.5 s of compute, 1.25 Gbit to send."""
    points = []
    for bandwidth in bandwidths:
        bound_s = max(0.5, 1.25 / bandwidth) if bandwidth else 0.5
        for system, factor in (("ddp", 1.5), ("undertow", 1.1)):
            time = timed(bound_s * factor, spread=0.02, bandwidth_gbit=bandwidth, system=system, compute_s=0.5)
            points.append(replace(time, bound_s=bound_s, gain_over_ddp=1.5 / factor, **changes))
    return points


def replace(old: Point, **changes: Any) -> Point:
    """The same point but for these fields."""
    return Point(**{name: getattr(old, name) for name in old.__struct_fields__} | changes)


def results(points: Sequence[Point], **changes: Any) -> Results:
    """Results with these points."""
    values: dict[str, Any] = {
        "machine": {"cpu": "Z80", "cores": "2"},
        "date": "2026-11-16T10:11:12Z",
        "versions": {"undertow": "0.1.0", "torch": "2.13.0"},
        "command": "undertow bench --hosts 4",
        "points": list(points),
        "notes": ["Four hosts share two cores."],
    }
    return Results(**values | changes)
