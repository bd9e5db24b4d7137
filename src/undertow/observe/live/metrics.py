"""The live view for Prometheus: the text format, version 0.0.4.

In: a snapshot of the job.  Out: text.
A rank that has not reported yet has only `undertow_rank_up`: an unknown figure is not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from undertow.observe.live.job_state import JobSnapshot, RankRow
from undertow.observe.meter.status_report import StatusReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Figure(NamedTuple):
    """A metric of every rank that has reported."""

    name: str
    kind: str
    meaning: str
    read: Callable[[StatusReport], float]


_FIGURES = (
    _Figure("undertow_steps_total", "counter", "Synchronised backward passes so far.", lambda p: p.steps),
    _Figure("undertow_step_rate", "gauge", "Steps per second over the last seconds.", lambda p: p.steps_per_s),
    _Figure("undertow_wait_seconds_total", "counter", "Time in which the training waited.", lambda p: p.waited_s),
    _Figure("undertow_wait_ratio", "gauge", "Share of the last seconds in which it waited.", lambda p: p.wait_share),
    _Figure("undertow_turn_ratio", "gauge", "Share in which another job had the device.", lambda p: p.turn_share),
    _Figure("undertow_bytes_out_total", "counter", "Bytes of slices sent.", lambda p: p.bytes_out),
    _Figure("undertow_bytes_in_total", "counter", "Bytes of slices received.", lambda p: p.bytes_in),
    _Figure("undertow_uptime_seconds", "gauge", "Time since the worker joined the job.", lambda p: p.uptime_s),
)
_LINK = _Figure(
    "undertow_link_bytes_per_second", "gauge", "Measured rate of the link, each way.", lambda p: p.link_bytes_per_s
)
_LAYER = _Figure(
    "undertow_slowest_layer_seconds",
    "gauge",
    "Forward and backward time of the slowest layer, per step.",
    lambda p: p.layer_ms_per_step / 1e3,
)


def write_metrics(snapshot: JobSnapshot) -> str:
    return "".join(line + "\n" for line in _list_lines(snapshot))


def _list_lines(snapshot: JobSnapshot) -> Iterator[str]:
    yield from _explain("undertow_rank_up", "gauge", "1 while the worker runs and reports.")
    for row in snapshot.rows:
        yield f"undertow_rank_up{_label(row)} {int(row.is_up and not row.is_alarming and row.report is not None)}"
    rows = [(row, row.report) for row in snapshot.rows if row.report is not None]
    for figure in _FIGURES:
        yield from _explain(figure.name, figure.kind, figure.meaning)
        yield from (f"{figure.name}{_label(row)} {figure.read(report):.12g}" for row, report in rows)
    yield from _explain(_LINK.name, _LINK.kind, _LINK.meaning)
    yield from (f"{_LINK.name}{_label(row)} {_LINK.read(p):.12g}" for row, p in rows if p.link_bytes_per_s)
    yield from _explain(_LAYER.name, _LAYER.kind, _LAYER.meaning)
    yield from (f"{_LAYER.name}{_label(row, layer=p.layer)} {_LAYER.read(p):.12g}" for row, p in rows if p.layer)


def _explain(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _label(row: RankRow, **more: str) -> str:
    labels = {"rank": str(row.rank), "host": row.host, **more}
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
