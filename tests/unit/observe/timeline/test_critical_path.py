"""The critical path: as long as the step, without gaps, following causes from rank to rank."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.support.timeline_samples import Event, Job, make_trace, to_lines, write_trace
from undertow.observe.timeline.analysis import Study, study
from undertow.observe.timeline.critical_path import Cause, PathLink, add_up
from undertow.observe.timeline.run_trace import RankTrace, Span, SpanKind, Step, Trace, Wire
from undertow.observe.timeline.trace_reader import read_trace
from undertow.observe.trace.chrome import TraceHeader


def read_study(folder: Path, traces: dict[int, list[Event]]) -> Study:
    trace = read_trace(write_trace(folder, traces))
    assert trace is not None
    return study(trace)


def check_whole(found: Study, number: int) -> None:
    links = found.paths[number]
    steps = [rank.steps[number] for rank in found.trace.ranks.values()]
    last = max(steps, key=lambda step: step.end_ns)
    assert (links[0].begin_ns, links[-1].end_ns) == (last.begin_ns, last.end_ns)
    for before, after in itertools.pairwise(links):
        assert before.end_ns == after.begin_ns
    assert all(link.length_ns > 0 for link in links)
    assert sum(add_up(links).values()) == last.length_ns


@pytest.mark.parametrize("has_gates", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_the_path_is_the_step(tmp_path: Path, has_gates: bool, seed: int) -> None:
    job = Job(ranks=4, steps=8, layers=5, has_gates=has_gates, jitter=0.8, seed=seed)
    found = read_study(tmp_path, make_trace(job))
    for number in found.paths:
        check_whole(found, number)
        assert Cause.UNKNOWN not in add_up(found.paths[number])


def test_a_straggler_computes_on_the_path(tmp_path: Path) -> None:
    # Without gates all ranks wait for rank 2, which does not wait.
    job = Job(ranks=3, steps=8, has_gates=False, slowness={2: 3.0}, size_bytes=4000)
    found = read_study(tmp_path, make_trace(job))
    links = found.paths[found.steps.shown["median"]]
    computed = {rank: sum(one.length_ns for one in links if one.rank == rank) for rank in range(3)}
    assert computed[2] > 0.95 * sum(computed.values())
    assert "compute (rank 2)" in " ".join(found.analysis.summary)


def test_a_full_link_is_on_the_path(tmp_path: Path) -> None:
    found = read_study(tmp_path, make_trace(Job(ranks=3, steps=8, has_gates=False, size_bytes=8_000_000)))
    sums = found.analysis.path_ns
    assert sums[Cause.WIRE] + sums[Cause.QUEUE] > 0.6 * sum(sums.values())


def test_where_a_rank_is_missing_the_path_goes_back_in_time(tmp_path: Path) -> None:
    job = Job(ranks=4, steps=8, has_gates=False, size_bytes=8_000_000)
    write_trace(tmp_path, make_trace(job))
    (tmp_path / "rank-1.json").unlink()
    trace = read_trace(tmp_path)
    assert trace is not None
    found = study(trace)
    for number in found.paths:
        check_whole(found, number)


def test_waits_without_a_cause_in_the_trace_are_unknown(tmp_path: Path) -> None:
    traces = make_trace(Job(ranks=2, steps=8, has_gates=False, size_bytes=8_000_000))
    kept = {
        rank: [event for event in events if event.get("cat") not in ("wire-in", "shard")]
        for rank, events in traces.items()
    }
    found = read_study(tmp_path, kept)
    check_whole(found, found.steps.shown["median"])
    assert found.analysis.path_ns[Cause.UNKNOWN] > 0
    assert "cause not in the trace" in " ".join(found.analysis.summary)


def test_each_link_of_a_chain() -> None:
    """Rank 0 waits for a result of shard 1, which waited for the contribution of rank 0 itself, queued for a while."""
    steps = {1: Step(1, 0, 1000)}
    zero = RankTrace(TraceHeader(rank=0, world_size=2), steps=dict(steps))
    zero.thread = [
        Span(cat=SpanKind.BACKWARD, name="a", begin_ns=0, end_ns=100, step=1),
        Span(cat=SpanKind.HOOK, name="a", begin_ns=100, end_ns=110, step=1, tensors=("a",)),
        Span(cat=SpanKind.WAIT, name="wait", begin_ns=200, end_ns=900, step=1, tensors=("a",), reason="a gate"),
        Span(cat=SpanKind.APPLY, name="apply a", begin_ns=900, end_ns=1000, step=1, tensors=("a",)),
    ]
    zero.outs = [Wire("push", 7, 1, 1, 8, 1, ("a",), begin_ns=300, end_ns=380, queued_ns=120, sent_ns=300)]
    zero.ins = [Wire("result", 7, 1, 1, 8, 1, ("a",), begin_ns=700, end_ns=880)]
    one = RankTrace(TraceHeader(rank=1, world_size=2), steps={1: Step(1, 0, 900)})
    one.thread = [Span(cat=SpanKind.HOOK, name="a", begin_ns=40, end_ns=50, step=1, tensors=("a",))]
    one.ins = [Wire("push", 7, 1, 1, 8, 0, ("a",), begin_ns=310, end_ns=400)]
    one.shard = [Span(cat="shard", name="a", begin_ns=405, end_ns=450, step=1, tensors=("a",), key=7, round=1)]
    one.outs = [Wire("result", 7, 1, 1, 8, 0, ("a",), begin_ns=690, end_ns=800, queued_ns=460, sent_ns=690)]
    found = study(Trace("", 2, {0: zero, 1: one}, []))
    assert found.paths[1] == [
        PathLink(Cause.COMPUTE, 0, 0, 110, "a"),
        PathLink(Cause.ENGINE, 0, 110, 120, "takes the gradient over"),
        PathLink(Cause.QUEUE, 0, 120, 300, "a", 1),
        PathLink(Cause.WIRE, 0, 300, 400, "a", 1),
        PathLink(Cause.ENGINE, 1, 400, 405, "starts the sum"),
        PathLink(Cause.SHARD, 1, 405, 450, "a"),
        PathLink(Cause.ENGINE, 1, 450, 460, "answers"),
        PathLink(Cause.QUEUE, 1, 460, 690, "a", 0),
        PathLink(Cause.WIRE, 1, 690, 880, "a", 0),
        PathLink(Cause.ENGINE, 0, 880, 900, "wakes the training thread"),
        PathLink(Cause.APPLY, 0, 900, 1000, "apply a"),
    ]


def test_gathered_tensors_have_no_shard() -> None:
    zero = RankTrace(TraceHeader(rank=0, world_size=2), steps={1: Step(1, 0, 1000)}, gathered={7})
    zero.thread = [
        Span(cat=SpanKind.WAIT, name="wait", begin_ns=200, end_ns=900, step=1, tensors=("a",), reason="a gate")
    ]
    zero.ins = [Wire("push", 7, 1, 1, 8, 1, ("a",), begin_ns=700, end_ns=890)]
    one = RankTrace(TraceHeader(rank=1, world_size=2), steps={1: Step(1, 0, 990)}, gathered={7})
    one.thread = [Span(cat=SpanKind.HOOK, name="a", begin_ns=600, end_ns=650, step=1, tensors=("a",))]
    one.outs = [Wire("push", 7, 1, 1, 8, 0, ("a",), begin_ns=680, end_ns=800, queued_ns=640, sent_ns=680)]
    found = study(Trace("", 2, {0: zero, 1: one}, []))
    assert [(link.cause, link.rank, link.begin_ns) for link in found.paths[1]] == [
        (Cause.COMPUTE, 1, 0),
        (Cause.QUEUE, 1, 640),
        (Cause.WIRE, 1, 680),
        (Cause.ENGINE, 0, 890),
        (Cause.COMPUTE, 0, 900),
    ]


def test_sums_of_torch_are_causes() -> None:
    zero = RankTrace(TraceHeader(rank=0, world_size=1), steps={1: Step(1, 0, 1000)})
    zero.thread = [Span(cat=SpanKind.WAIT, name="w", begin_ns=200, end_ns=900, step=1, reason="the end of backward")]
    zero.reduced = [Span(cat="allreduce", name="a", begin_ns=100, end_ns=880, step=1, tensors=("a",), size_bytes=8)]
    found = study(Trace("", 1, {0: zero}, []))
    assert add_up(found.paths[1]) == {Cause.REDUCE: 780, Cause.COMPUTE: 200, Cause.ENGINE: 20}
    (row, *_) = found.analysis.tensors
    assert (row.scheme, row.reason) == ("allreduce", "8 B summed by torch, whose traffic is not recorded")


def test_a_chain_that_does_not_go_back_in_time_ends() -> None:
    zero = RankTrace(TraceHeader(rank=0, world_size=2), steps={1: Step(1, 0, 1000)})
    zero.thread = [Span(cat=SpanKind.WAIT, name="w", begin_ns=200, end_ns=900, step=1, tensors=("a",), reason="a gate")]
    zero.ins = [Wire("result", 7, 1, 1, 8, 1, ("a",), begin_ns=900, end_ns=900)]  # from a rank without a file
    found = study(Trace("", 2, {0: zero}, []))
    check_whole(found, 1)
    assert add_up(found.paths[1]) == {Cause.UNKNOWN: 700, Cause.COMPUTE: 300}


@pytest.mark.parametrize("shift_us", [-9000.0, -900.0, 900.0, 9000.0])
def test_paths_have_no_gap_if_clocks_disagree(tmp_path: Path, shift_us: float) -> None:
    write_trace(tmp_path, make_trace(Job(ranks=3, steps=8, has_gates=False, size_bytes=2_000_000)))
    path = tmp_path / "rank-1.json"
    events = json.loads(path.read_text())
    for event in events:
        event["ts"] += shift_us
        for name in {"sent", "queued"} & event["args"].keys():
            event["args"][name] += shift_us
    path.write_text(to_lines(events))
    trace = read_trace(tmp_path)
    assert trace is not None
    found = study(trace)
    for number in found.paths:
        check_whole(found, number)
