"""The choice of steps: which count (those after planning, if there are enough) and which are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.timeline_samples import Event, Job, make_planned, make_trace, spans, write_trace
from undertow.observe.timeline.step_choice import StepChoice, choose_steps
from undertow.observe.timeline.trace_reader import read_trace


def choose(folder: Path, traces: dict[int, list[Event]], wanted: int | None = None) -> StepChoice:
    trace = read_trace(write_trace(folder, traces))
    assert trace is not None
    return choose_steps(trace, wanted)


def plan_in_step(traces: dict[int, list[Event]], *numbers: int) -> None:
    for rank, events in traces.items():
        for number in numbers:
            begins = {event["args"]["step"]: event["ts"] for event in spans(events, "step")}
            planned = {"ph": "M", "name": "undertow.plan", "pid": rank, "ts": begins.get(number, 0) + 1}
            events.append({**planned, "args": make_planned(Job())})


@pytest.mark.parametrize(
    ("plans", "steps", "counted", "words"),
    [
        ((0,), 9, (2, 3, 4, 5, 6, 7, 8, 9), "Step 1 left out: it does not overlap"),
        ((), 9, (6, 7, 8, 9), "Steps 1 to 5 left out: undertow measures in the first steps"),
        ((), 7, (1, 2, 3, 4, 5, 6, 7), "there are too few others"),
        ((3,), 9, (4, 5, 6, 7, 8, 9), "Steps 1 to 3 left out: undertow measured and planned"),
        ((2, 5), 9, (6, 7, 8, 9), "Steps 1 to 5 left out"),
        ((2, 8), 9, (3, 4, 5, 6, 7, 8, 9), "Steps 1 to 2 left out: undertow measures until there is a plan"),
        ((8,), 9, (1, 2, 3, 4, 5, 6, 7, 8, 9), "there are too few others"),
    ],
)
def test_first_steps_are_left_out_if_enough_remain(
    tmp_path: Path, plans: tuple[int, ...], steps: int, counted: tuple[int, ...], words: str
) -> None:
    traces = make_trace(Job(steps=steps))
    plan_in_step(traces, *plans)
    chosen = choose(tmp_path, traces)
    assert chosen.counted == counted
    assert words in chosen.notes[0]


def test_a_simulator_needs_no_time_to_settle(tmp_path: Path) -> None:
    chosen = choose(tmp_path, make_trace(Job(steps=4, source="simulator")))
    assert (chosen.counted, chosen.notes) == (
        (2, 3, 4),
        ("Step 1 left out: it does not overlap with a previous step.",),
    )


def test_the_median_the_fastest_and_the_slowest_are_shown(tmp_path: Path) -> None:
    traces = make_trace(Job(steps=12, jitter=0.6, seed=3))
    chosen = choose(tmp_path, traces, wanted=2)
    lengths: dict[int, float] = {}
    for number in chosen.counted:
        found = [event for events in traces.values() for event in spans(events, "step")]
        lengths[number] = sum(event["dur"] for event in found if event["args"]["step"] == number)
    by_length = sorted(lengths, key=lambda number: lengths[number])
    assert chosen.shown == {"chosen": 2, "median": by_length[3], "fastest": by_length[0], "slowest": by_length[-1]}


def test_a_step_is_shown_once(tmp_path: Path) -> None:
    assert choose(tmp_path, make_trace(Job(steps=1))).shown == {"median": 1}
