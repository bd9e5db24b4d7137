"""Simulated runs, written down as real ones are."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path

import pytest

from tests.support.perfetto import Event, find_faults, read_events
from undertow.tools.sim.run import Outcome, simulate
from undertow.tools.sim.schedules import find_schedule
from undertow.tools.sim.subject import find_subject
from undertow.tools.sim.sweep import Noise
from undertow.tools.sim.topology import make_topology
from undertow.tools.sim.traces import STEPS, trace_run

HOSTS = 3


def trace(folder: Path, system: str, model: str = "alexnet") -> tuple[Outcome, list[Event]]:
    topology = make_topology(HOSTS, 4e9)
    outcome = trace_run(folder, find_subject(model, None), topology, find_schedule(system), Noise())
    events = read_events(folder / "trace.json")
    assert find_faults(events) == []
    return outcome, events


def add_up(events: list[Event], cat: str, rank: int, step: int) -> float:
    chosen = [e for e in events if e.get("cat") == cat and e["ph"] == "X" and e["pid"] == rank]
    return float(sum(event["dur"] for event in chosen if event["args"]["step"] == step))


@pytest.mark.parametrize("system", ["undertow", "p3", "hybrid", "wfbp", "ddp"])
def test_every_system_leaves_a_trace_that_holds_its_steps(system: str, tmp_path: Path) -> None:
    _, events = trace(tmp_path, system)
    assert sorted(path.name for path in tmp_path.glob("rank-*")) == [f"rank-{rank}.json" for rank in range(HOSTS)]
    steps = Counter(event["pid"] for event in events if event.get("cat") == "step")
    assert steps == dict.fromkeys(range(HOSTS), STEPS)
    for rank in range(HOSTS):
        for step in range(2, STEPS + 1):
            whole = add_up(events, "step", rank, step)
            parts = sum(add_up(events, cat, rank, step) for cat in ("forward", "backward", "wait"))
            assert parts == pytest.approx(whole, abs=1.0)


def test_steps_take_as_long_as_the_simulator_says(tmp_path: Path) -> None:
    """It counts a step from one backward to the next, the trace from one forward to the next: in the long run alike."""
    outcome, events = trace(tmp_path, "undertow", "resnet50")
    settled = [add_up(events, "step", rank, step) for rank in range(HOSTS) for step in range(2, STEPS)]
    assert statistics.mean(settled) / 1e6 == pytest.approx(outcome.iteration_s, rel=0.01)


def test_what_was_sent_is_what_came_and_what_the_links_carried(tmp_path: Path) -> None:
    outcome, events = trace(tmp_path, "undertow")
    frames = {cat: [e["args"] for e in events if e.get("cat") == cat] for cat in ("wire-out", "wire-in")}

    def tell(cat: str, sender: str, receiver: str) -> Counter[tuple[object, ...]]:
        ranks = [event["pid"] for event in events if event.get("cat") == cat]
        pairs = zip(ranks, frames[cat], strict=True)
        names = ("kind", "key", "round", "bytes")
        return Counter(
            (args.get("from", rank), args.get("to", rank), *(args[name] for name in names)) for rank, args in pairs
        )

    sent, came = tell("wire-out", "pid", "to"), tell("wire-in", "from", "pid")
    assert sent == came
    payload = sum(args["bytes"] for args in frames["wire-out"])
    carried = sum(outcome.bytes_out) * STEPS
    assert payload <= carried <= 1.02 * payload  # with headers and receipts


def test_a_slice_takes_its_time_to_come(tmp_path: Path) -> None:
    _, events = trace(tmp_path, "undertow")
    large = [e for e in events if e.get("cat") == "wire-in" and e["args"]["bytes"] > 100_000]
    assert large
    assert all(event["dur"] > 0 for event in large)


def test_old_traces_are_taken_away(tmp_path: Path) -> None:
    (tmp_path / "rank-7.json").write_text("[]")
    trace(tmp_path, "undertow")
    assert not (tmp_path / "rank-7.json").exists()


def test_a_trace_changes_nothing(tmp_path: Path) -> None:
    subject, topology, schedule = find_subject("alexnet", None), make_topology(HOSTS, 4e9), find_schedule("undertow")
    plain = simulate(subject.profile, topology, schedule, subject.device, steps=STEPS)
    traced, _ = trace(tmp_path, "undertow")
    assert traced.steps_s == plain.steps_s
    assert traced.bytes_out == plain.bytes_out
