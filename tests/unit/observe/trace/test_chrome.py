"""Conversion of trace events to viewer events: lanes, steps and arrows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.support.perfetto import Event, find_faults
from undertow.engine.core.frames import Kind
from undertow.observe.trace.chrome import _HANDLERS, Composer, TraceHeader
from undertow.observe.trace.clocks import Clocks
from undertow.observe.trace.lanes import Lane, lane_from, lane_to
from undertow.tracing import events
from undertow.tracing.events import TraceEvent, TraceInstant, TraceSpan
from undertow.tracing.window import Window

PUSH, RESULT = int(Kind.PUSH), int(Kind.RESULT)
ABOUT = TraceHeader(rank=1, world_size=2, host="b", version="0.1.0", started="abc")
# One step of one layer on rank 1, whose gradient is summed by rank 0's shard; rank 0 has a gradient for ours.
TABLE = events.Named(0.0, "the parameters of Net", "mean", {4: ("fc.weight",), 5: ("conv.weight", "conv.bias")})
STEP = [
    events.ForwardBegan(1.0, 0),
    events.Forward(1.001, 1.1, "fc"),
    events.PassBegan(1.2, 0, 1),
    events.Hooked(1.3, 1.301, "fc.weight"),
    events.Sent(1.302, 1.31, 0, PUSH, 4, 1, 1000),
    events.Written(1.33, 0, PUSH, 4, 1),
    events.Received(1.31, 1.34, 0, PUSH, 5, 1, 800),
    events.Summed(1.34, 1.35, 5, 1),
    events.PassEnded(1.4, 0, 1),
    events.Received(1.42, 1.45, 0, RESULT, 4, 1, 1000),
    events.Waited(1.41, 1.46, "the end of backward", "fc.weight"),
    events.Applied(1.47, 1.48, ("fc.weight",)),
    events.Stepped(1.5, 1.55, "SGD"),
    events.ForwardBegan(2.0, 0),
]


def compose(*given: TraceEvent, about: TraceHeader = ABOUT, clocks: Clocks | None = None) -> list[Event]:
    composer = Composer(about, clocks or Clocks())
    lines = [*composer.open(), *composer.compose(given), *composer.close("done")]
    assert not any("\n" in line for line in lines)
    told = list(map(json.loads, lines))
    assert find_faults(told) == []
    return told


def spans(told: Sequence[Event], cat: str) -> list[Event]:
    return [event for event in told if event.get("cat") == cat and event["ph"] == "X"]


def only(told: Sequence[Event], cat: str) -> Event:
    (span,) = spans(told, cat)
    return span


def metadata(told: Sequence[Event], name: str) -> list[dict[str, Any]]:
    return [event["args"] for event in told if event["ph"] == "M" and event["name"] == name]


@pytest.mark.parametrize(
    ("cat", "name", "lane", "began_s", "ended_s"),
    [
        ("step", "step 1", Lane.STEPS, 1.0, 2.0),
        ("forward", "fc", Lane.COMPUTE, 1.001, 1.1),
        ("backward", "fc", Lane.COMPUTE, 1.2, 1.3),
        ("hook", "fc.weight", Lane.COMPUTE, 1.3, 1.301),
        ("wire-out", "fc.weight", lane_to(0), 1.31, 1.33),
        ("shard", "conv.weight and 1 more", Lane.SHARD, 1.34, 1.35),
        ("wait", "wait for fc.weight", Lane.COMPUTE, 1.41, 1.46),
        ("apply", "apply fc.weight", Lane.COMPUTE, 1.47, 1.48),
        ("optimizer", "SGD.step", Lane.COMPUTE, 1.5, 1.55),
    ],
)
def test_every_stage_has_its_span(cat: str, name: str, lane: int, began_s: float, ended_s: float) -> None:
    span = only(compose(TABLE, *STEP), cat)
    assert (span["name"], span["tid"], span["pid"], span["args"]["step"]) == (name, lane, 1, 1)
    assert (span["ts"], span["ts"] + span["dur"]) == pytest.approx((began_s * 1e6, ended_s * 1e6))


def test_a_slice_has_its_receiver_and_its_time_in_the_queue() -> None:
    args = only(compose(TABLE, *STEP), "wire-out")["args"]
    assert args == {
        "step": 1,
        "kind": "push",
        "key": 4,
        "round": 1,
        "bytes": 1000,
        "tensors": ["fc.weight"],
        "to": 0,
        "sent": pytest.approx(1.31e6),
        "queued": pytest.approx(1.302e6),
    }


def test_a_received_slice_has_its_sender() -> None:
    push, result = spans(compose(TABLE, *STEP), "wire-in")
    assert (push["args"]["kind"], push["args"]["from"], push["args"]["bytes"], push["tid"]) == (
        "push",
        0,
        800,
        lane_from(0),
    )
    assert result["args"]["kind"] == "result"


def test_a_wait_in_the_queue_is_an_asynchronous_event() -> None:
    begin, end = (event for event in compose(TABLE, *STEP) if event.get("cat") == "queue")
    assert (begin["ph"], begin["ts"], end["ph"], end["ts"]) == ("b", pytest.approx(1.302e6), "e", pytest.approx(1.31e6))
    assert begin["args"]["of"] == "fc.weight"


def test_an_arrow_leads_from_the_hook_over_the_wire_to_the_gate() -> None:
    arrow = [event for event in compose(TABLE, *STEP) if event.get("cat") == "gradient"]
    assert [event["ph"] for event in arrow] == ["s", "t", "t", "f"]
    assert [event["tid"] for event in arrow] == [Lane.COMPUTE, lane_to(0), lane_from(0), Lane.COMPUTE]
    assert [event["ts"] for event in arrow] == pytest.approx([1.3e6, 1.31e6, 1.45e6, 1.46e6], abs=1.1)
    assert len({event["id"] for event in arrow}) == 1


def test_without_a_wait_the_arrow_ends_where_the_gradient_is_applied() -> None:
    arrow = compose(TABLE, *(event for event in STEP if type(event) is not events.Waited))
    assert [event["ts"] for event in arrow if event["ph"] == "f"] == [pytest.approx(1.47e6)]


def test_the_arrow_comes_back_with_the_last_slice() -> None:
    table = events.Named(0.0, "the parameters", "mean", {4: ("fc.weight",), 6: ("fc.weight",)})
    story = [*STEP[:10], events.Received(1.455, 1.457, 0, RESULT, 6, 1, 1000), *STEP[10:]]
    back = [event["ts"] for event in compose(table, *story) if event["ph"] == "t" and event["tid"] == lane_from(0)]
    assert back == [pytest.approx(1.457e6, abs=1.1)]


def test_slices_of_the_previous_step_that_leave_late_get_no_arrow() -> None:
    late = [events.Sent(1.0, 1.31, 0, PUSH, 4, 1, 9), events.Written(1.33, 0, PUSH, 4, 1)]
    arrow = [event for event in compose(TABLE, *STEP[:4], *late) if event.get("cat") == "gradient"]
    assert [event["ph"] for event in arrow] == ["s"]


def test_one_link_carries_one_slice_at_a_time() -> None:
    """Both left the send queue at once; the second is on the wire when the first has been sent."""
    sent = [events.Sent(1.0, 1.0, 0, PUSH, 4, number, 9) for number in (1, 2)]
    written = [events.Written(1.0 + number / 10, 0, PUSH, 4, number) for number in (1, 2)]
    first, second = spans(compose(TABLE, *sent, *written), "wire-out")
    assert first["ts"] + first["dur"] == pytest.approx(second["ts"])
    assert second["args"]["sent"] == pytest.approx(1.0e6)


def test_a_few_bytes_may_overtake_a_slice_where_links_are_virtual() -> None:
    sent = [events.Sent(1.0, 1.0, 0, PUSH, 4, 1, 900), events.Sent(1.1, 1.1, 0, RESULT, 5, 1, 0)]
    written = [events.Written(1.2, 0, RESULT, 5, 1), events.Written(1.5, 0, PUSH, 4, 1)]
    assert [
        (span["args"]["key"], span["args"]["bytes"]) for span in spans(compose(TABLE, *sent, *written), "wire-out")
    ] == [
        (5, 0),
        (4, 900),
    ]
    known_ahead = compose(TABLE, *sent, *reversed(written))  # `compose` finds no fault in it
    assert len(spans(known_ahead, "wire-out")) == 2


def test_a_slice_from_before_recording_is_left_out() -> None:
    written = [events.Written(0.5, 0, PUSH, 9, 1), events.Written(1.1, 0, PUSH, 4, 1)]
    told = compose(TABLE, written[0], events.Sent(1.0, 1.0, 0, PUSH, 4, 1, 9), written[1])
    assert only(told, "wire-out")["args"]["key"] == 4


def test_steps_are_counted_by_the_first_model_that_trains() -> None:
    def train(model: int, time_s: float, number: int) -> list[TraceEvent]:
        return [
            events.ForwardBegan(time_s, model),
            events.PassBegan(time_s + 0.1, model, number),
            events.PassEnded(time_s + 0.2, model, number),
        ]

    both = [event for step in range(3) for model in (7, 8) for event in train(model, step + model / 20, step + 1)]
    steps = spans(compose(*both), "step")
    assert [(step["name"], step["dur"]) for step in steps] == [
        ("step 1", pytest.approx(1e6)),
        ("step 2", pytest.approx(1e6)),
    ]


def test_forwards_that_accumulate_are_in_one_step() -> None:
    forwards = [events.ForwardBegan(time_s, 0) for time_s in (1.0, 1.1, 1.2)]
    told = compose(*forwards, events.PassBegan(1.3, 0, 1), events.PassEnded(1.4, 0, 1), events.ForwardBegan(2.0, 0))
    assert only(told, "step")["dur"] == pytest.approx(1e6)


def test_without_a_recorded_forward_a_step_begins_with_its_pass() -> None:
    passes = [(events.PassBegan(n, 0, n), events.PassEnded(n + 0.5, 0, n)) for n in (1, 2, 3)]
    steps = spans(compose(*(event for both in passes for event in both)), "step")
    assert [step["ts"] for step in steps] == [1e6, 2e6]


def test_waits_are_not_time_of_backward() -> None:
    story = [events.PassBegan(1.0, 0, 1), events.TurnAwaited(1.0, 1.4), events.Hooked(1.5, 1.5, "fc.weight")]
    assert only(compose(*story), "backward")["dur"] == pytest.approx(0.1e6)


def test_times_are_those_of_rank_0() -> None:
    clocks = Clocks()
    clocks.compare(1.0, 1000.0, 0.0001)
    span = only(compose(TABLE, *STEP, clocks=clocks), "optimizer")
    assert span["ts"] == pytest.approx(1001.5e6)


def test_steps_do_not_overlap_after_a_better_comparison_of_clocks() -> None:
    clocks = Clocks()
    clocks.compare(0.5, 1000.0000023, 0.1)
    composer = Composer(ABOUT, clocks)
    lines = [*composer.open(), *composer.compose([TABLE, *STEP])]
    clocks.compare(0.6, 1000.0, 0.0001)
    lines += composer.compose([events.PassBegan(2.1, 0, 2), events.PassEnded(2.2, 0, 2), events.ForwardBegan(3.0, 0)])
    told = list(map(json.loads, lines))
    assert find_faults(told) == []
    first, second = spans(told, "step")
    assert second["ts"] == pytest.approx(first["ts"] + first["dur"], abs=0.002)
    assert second["ts"] + second["dur"] == pytest.approx(1003e6, abs=0.002)


def test_a_trace_names_its_rank_and_the_tensors_of_its_keys() -> None:
    told = compose(TABLE, *STEP)
    assert metadata(told, "process_name") == [{"name": "rank 1 on b"}]
    (about,) = metadata(told, "undertow")
    assert (about["format"], about["rank"], about["world_size"], about["source"]) == (1, 1, 2, "worker")
    (table,) = metadata(told, "undertow.table")
    assert table["tensors"] == {"4": ["fc.weight"], "5": ["conv.weight", "conv.bias"]}
    assert metadata(told, "undertow.end") == [{"reason": "done"}]
    assert {"name": "to rank 0"} in metadata(told, "thread_name")


def test_links_clocks_and_turns_are_written() -> None:
    given = [
        events.Linked(1.0, 1.2e8),
        events.Compared(1.0, 5.0, 0.001),
        events.TurnHeld(1.0, 2.0),
        events.Reduced(1.0, 1.5, ("a", "b"), 64),
    ]
    told = compose(*given)
    assert metadata(told, "undertow.link") == [{"bytes_per_s": 1.2e8}]
    assert metadata(told, "undertow.clock") == [{"offset_s": 5.0, "round_trip_s": 0.001}]
    assert only(told, "turn")["tid"] == Lane.TURN
    assert only(told, "allreduce")["args"] == {"step": 0, "tensors": ["a", "b"], "bytes": 64}


def test_arrows_of_different_ranks_have_different_numbers() -> None:
    def numbers(rank: int) -> set[int]:
        told = compose(*STEP, about=msgspec.structs.replace(ABOUT, rank=rank))
        return {event["id"] for event in told if event.get("cat") == "gradient"}

    assert numbers(0).isdisjoint(numbers(1))


def test_a_repeated_call_is_named_once() -> None:
    calls = [events.Named(float(time_s), "calls", "sum", {7: ("loss",)}) for time_s in range(3)]
    assert len(metadata(compose(*calls), "undertow.table")) == 1


def test_facts_from_before_the_chosen_steps_are_written_when_they_begin() -> None:
    composer = Composer(ABOUT, Clocks(), Window(2, 2))
    compared = [events.Compared(float(time_s), 5.0, 0.001) for time_s in range(3)]
    before = composer.compose([TABLE, events.Linked(0.1, 1e8), *compared, *STEP[:-1]])
    assert before == []
    told = list(map(json.loads, composer.compose([STEP[-1]])))
    assert [event["name"] for event in told] == ["undertow.table", "undertow.link", "undertow.clock"]
    assert told[-1]["ts"] == 2e6  # the newest


def test_names_may_be_anything() -> None:
    name = 'a "b"\n\\ü.weight'
    told = compose(events.Named(0.0, name, "mean", {1: (name,)}), events.Hooked(1.0, 1.0, name))
    assert only(told, "hook")["args"]["tensor"] == name
    assert metadata(told, "undertow.table")[0]["tensors"] == {"1": [name]}


def test_every_type_of_event_has_a_handler() -> None:
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, TraceEvent)}
    assert kinds - set(_HANDLERS) == {TraceEvent, TraceInstant, TraceSpan}
