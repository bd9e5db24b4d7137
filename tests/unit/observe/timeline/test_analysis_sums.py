"""The uses of a step add up to it exactly, and all sums equal those of a straightforward calculation."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.timeline_samples import Event, Job, make_trace, spans, write_trace
from undertow.observe.timeline.analysis import Analysis, Study, study
from undertow.observe.timeline.run_trace import RankTrace, Span, SpanKind, Step, Trace, Wire
from undertow.observe.timeline.thread_time import ThreadTimeline, TimeUse
from undertow.observe.timeline.trace_reader import read_trace
from undertow.observe.trace.chrome import TraceHeader

SPENT = {
    "forward": TimeUse.COMPUTE,
    "backward": TimeUse.COMPUTE,
    "hook": TimeUse.HOOK,
    "wait": TimeUse.WAIT,
    "apply": TimeUse.APPLY,
    "optimizer": TimeUse.OPTIMIZER,
    "turn-wait": TimeUse.TURN,
}


def read_study(folder: Path, traces: dict[int, list[Event]]) -> Study:
    trace = read_trace(write_trace(folder, traces))
    assert trace is not None
    return study(trace)


def ns(time_us: float) -> int:
    return round(time_us * 1000)


def add_up_plainly(events: Sequence[Event], begin_ns: int, end_ns: int) -> Counter[TimeUse]:
    """Add up the time between any two changes for the span that began last."""
    lane = [
        (ns(event["ts"]), ns(event["ts"] + event["dur"]), place, event["cat"])
        for place, event in enumerate(events)
        if event.get("cat") in SPENT
    ]
    edges = sorted({begin_ns, end_ns, *(edge for span in lane for edge in span[:2] if begin_ns < edge < end_ns)})
    sums: Counter[TimeUse] = Counter(dict.fromkeys(TimeUse, 0))
    for first, second in itertools.pairwise(edges):
        active = [span for span in lane if span[0] <= first and span[1] >= second]
        last = max(active, key=lambda span: (span[0], -span[1], span[2]), default=None)
        sums[TimeUse.COMPUTE if last is None else SPENT[last[3]]] += second - first
    return sums


@pytest.mark.parametrize("has_gates", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_parts_and_bytes_equal_a_plain_sum(tmp_path: Path, has_gates: bool, seed: int) -> None:
    job = Job(ranks=4, steps=9, layers=5, has_gates=has_gates, jitter=0.5, seed=seed, slowness={1: 1.5})
    traces = make_trace(job)
    analysis = read_study(tmp_path, traces).analysis
    assert analysis.counted == (6, 7, 8, 9)
    for row in analysis.ranks:
        events = traces[row.rank]
        steps = [event for event in spans(events, "step") if event["args"]["step"] in analysis.counted]
        expected: Counter[TimeUse] = Counter(dict.fromkeys(TimeUse, 0))
        for step in steps:
            expected.update(add_up_plainly(events, ns(step["ts"]), ns(step["ts"] + step["dur"])))
        assert row.spent_ns == expected
        assert sum(row.spent_ns.values()) == row.step_ns == sum(ns(step["dur"]) for step in steps)
        assert row.link.out_bytes == add_bytes(events, "wire-out", analysis)
        assert row.link.in_bytes == add_bytes(events, "wire-in", analysis)
    check_totals(analysis, traces)


def add_bytes(events: Sequence[Event], cat: str, analysis: Analysis) -> int:
    return sum(e["args"]["bytes"] for e in spans(events, cat) if e["args"]["step"] in analysis.counted)


def check_totals(analysis: Analysis, traces: dict[int, list[Event]]) -> None:
    assert sum(row.total_bytes for row in analysis.tensors) == sum(
        add_bytes(events, "wire-out", analysis) for events in traces.values()
    )
    waited = sum(row.spent_ns[TimeUse.WAIT] for row in analysis.ranks)
    assert sum(row.waited_total_ns for row in analysis.tensors) == waited
    assert sum(analysis.waited_total_ns.values()) == waited
    assert sum(analysis.spent_ns.values()) == pytest.approx(analysis.step_ns, rel=1e-12)


def test_a_row_has_the_figures_of_its_tensor(tmp_path: Path) -> None:
    traces = make_trace(Job(ranks=3, steps=9, layers=4))
    found = read_study(tmp_path, traces)
    wires: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for events in traces.values():
        for event in spans(events, "wire-out"):
            if event["args"]["step"] in found.analysis.counted:
                wires[event["name"]].append(event["args"])
    for row in found.analysis.tensors:
        sent = wires.get(row.tensors[0], [])
        queued = [ns(args["sent"]) - ns(args["queued"]) for args in sent]
        if sent:
            assert (row.total_slices, row.queued_longest_ns) == (len(sent), max(queued))
            assert row.queued_mean_ns == pytest.approx(sum(queued) / len(queued))
            assert row.wire_mean_ns == row.wire_longest_ns == 850_000


# Any spans at all

lanes = st.lists(
    st.tuples(st.sampled_from(sorted(SPENT)), st.integers(0, 400), st.integers(0, 120)), min_size=0, max_size=25
)


@given(lanes, st.lists(st.integers(1, 150), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.differing_executors])
def test_any_spans_add_up_to_the_step(lane: list[tuple[str, int, int]], lengths: list[int]) -> None:
    trace = RankTrace(TraceHeader(rank=0, world_size=1))
    events = []
    for cat, begin, length in lane:
        trace.thread.append(Span(cat=cat, name="", begin_ns=begin * 1000, end_ns=(begin + length) * 1000, step=1))
        events.append({"cat": cat, "ts": begin, "dur": length})
    trace.thread.sort(key=lambda span: (span.begin_ns, -span.end_ns))
    begin_ns = 30_000
    for number, length in enumerate(lengths, 1):
        trace.steps[number] = Step(number, begin_ns, begin_ns + length * 1000)
        begin_ns += length * 1000
    day = ThreadTimeline(trace)
    for step in trace.steps.values():
        sums = add_up(day, step)
        assert sum(sums.values()) == step.length_ns
        assert sums == add_up_plainly(events, step.begin_ns, step.end_ns)


def test_a_wait_inside_of_a_forward_is_waiting() -> None:
    trace = RankTrace(TraceHeader(rank=0, world_size=1), steps={1: Step(1, 0, 100)})
    trace.thread = [span(SpanKind.FORWARD, 10, 60), span(SpanKind.WAIT, 20, 50), span(SpanKind.APPLY, 50, 55)]
    sums = add_up(ThreadTimeline(trace), trace.steps[1])
    assert (sums[TimeUse.COMPUTE], sums[TimeUse.WAIT], sums[TimeUse.APPLY]) == (65, 30, 5)


def add_up(day: ThreadTimeline, step: Step) -> dict[TimeUse, int]:
    sums = dict.fromkeys(TimeUse, 0)
    for segment in day.cut(step.begin_ns, step.end_ns):
        sums[segment.use] += segment.length_ns
    return sums


def span(lane: SpanKind, begin_ns: int, end_ns: int, **more: Any) -> Span:
    return Span(cat=lane.value, name=lane.value, begin_ns=begin_ns, end_ns=end_ns, step=1, **more)


# Whom waiting belongs to


def wait_for_all(arrivals: Sequence[tuple[int, str]], hooks: Sequence[str]) -> dict[str, int]:
    """Return the waits of a rank from 100 to 200 at the end of backward, while these tensors arrive."""
    trace = RankTrace(TraceHeader(rank=0, world_size=2), steps={1: Step(1, 0, 300)})
    trace.thread = [span(SpanKind.HOOK, 10, 20, tensors=(name,)) for name in hooks]
    trace.thread.append(span(SpanKind.WAIT, 100, 200, tensors=("a",), reason="the end of backward"))
    trace.ins = [
        Wire("result", 1, 1, 1, 8, 1, (name,), begin_ns=time - 5, end_ns=time, queued_ns=-1) for time, name in arrivals
    ]
    return dict(study(Trace("", 2, {0: trace}, [])).analysis.waited_total_ns)


def test_waiting_for_all_counts_for_the_next_arrival() -> None:
    shares = wait_for_all([(90, "a"), (130, "b"), (190, "c")], ["a", "b", "c"])
    assert shares == {"b": 30, "c": 60, "the training thread to wake up": 10}


def test_backward_waits_only_for_gradients() -> None:
    assert wait_for_all([(150, "report"), (200, "b")], ["b"])["b"] == 100


def test_waiting_in_which_nothing_arrives_keeps_its_reason() -> None:
    assert wait_for_all([], ["b"]) == {"the end of backward": 100}
