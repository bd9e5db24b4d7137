"""Traces are read in any state, and missing parts are named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bench_fakes import FakeProgress
from tests.support.timeline_samples import Event, Job, make_trace, spans, to_lines, write_trace
from undertow.observe.timeline.analysis import Analysis, study
from undertow.observe.timeline.run_trace import Trace, count_unmatched, match_wires
from undertow.observe.timeline.trace_reader import read_trace

JOB = Job(ranks=3, steps=9)


def read(folder: Path) -> Trace:
    trace = read_trace(folder)
    assert trace is not None
    return trace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace", make_trace(JOB))


def test_a_whole_trace_is_read_as_it_was_written(folder: Path) -> None:
    events, trace = make_trace(JOB), read(folder)
    assert (trace.world_size, list(trace.ranks), trace.missing) == (3, [0, 1, 2], [])
    for rank, known in trace.ranks.items():
        assert known.ended == "the job ended"
        assert (known.header.host, known.header.script) == (f"host{rank}", "train.py")
        assert known.link_bytes_per_s == JOB.bytes_per_us * 1e6
        assert known.clock_error_ns == 10_000
        assert list(known.steps) == list(range(1, 10))
        cats = ("forward", "backward", "hook", "wait", "apply")
        assert len(known.thread) == sum(len(spans(events[rank], cat)) for cat in cats)
        assert len(known.outs) == len(spans(events[rank], "wire-out")) > 0
        first = spans(events[rank], "step")[0]
        assert known.steps[1].begin_ns == round(first["ts"] * 1000)
        assert known.steps[1].length_ns == round(first["dur"] * 1000)


def test_one_file_with_all_ranks_gives_the_same(folder: Path) -> None:
    apart = study(read(folder)).analysis
    lines = [event for rank in range(3) for event in make_trace(JOB)[rank]]
    for path in folder.glob("rank-*.json"):
        path.unlink()
    (folder / "trace.json").write_text(to_lines(lines))
    together = study(read(folder)).analysis
    assert together == apart


def test_sent_slices_are_matched_with_arrivals(folder: Path) -> None:
    trace = read(folder)
    match_wires(trace)
    assert count_unmatched(trace, range(1, 10)) == (0, sum(len(rank.outs) for rank in trace.ranks.values()))
    for rank in trace.ranks.values():
        for out in rank.outs:
            # As in the samples: 800 us for 400 kB, plus the latency.
            assert out.wire_ns == 850_000
        for wire in rank.ins:
            assert wire.end_ns - wire.sent_ns == 850_000
            assert wire.queued_ns <= wire.sent_ns


def test_slices_of_a_round_are_matched_in_order(folder: Path) -> None:
    trace = read(folder)
    sender, receiver = trace.ranks[1], trace.ranks[0]
    kind = ("push", 0, 3)  # key and round
    first = next(wire for wire in sender.outs if (wire.kind, wire.key, wire.round) == kind)
    there = next(wire for wire in receiver.ins if (wire.kind, wire.key, wire.round, wire.peer) == (*kind, 1))
    later_ns = 1_000_000
    for wires, wire in ((sender.outs, first), (receiver.ins, there)):
        times = {name: getattr(wire, name) for name in ("begin_ns", "end_ns", "queued_ns", "sent_ns")}
        values = {name: getattr(wire, name) for name in wire.__struct_fields__}
        moved = {name: time + later_ns if time >= 0 else time for name, time in times.items()}
        wires.append(type(wire)(**values | moved))
    match_wires(trace)
    assert sender.outs[-1].arrived_ns == first.arrived_ns + later_ns


def test_a_key_with_a_result_was_not_gathered(tmp_path: Path) -> None:
    traces = make_trace(JOB)
    for events in traces.values():
        (table,) = [event for event in events if event["name"] == "undertow.table"]
        table["args"] |= {"op": "gather", "tensors": table["args"]["tensors"] | {"99": ["factors"]}}
    for rank in read(write_trace(tmp_path, traces)).ranks.values():
        assert rank.gathered == {99}


# What is missing

Damage = Callable[[Path], None]


def cut_last_line(folder: Path) -> None:
    path = folder / "rank-1.json"
    path.write_bytes(path.read_bytes()[:-60])


def cut_in_the_middle(folder: Path) -> None:
    path = folder / "rank-1.json"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])


def cut_early(folder: Path) -> None:
    path = folder / "rank-1.json"
    path.write_bytes(path.read_bytes()[:2000])


def spoil_a_line(folder: Path) -> None:
    path = folder / "rank-2.json"
    lines = path.read_text().splitlines()
    lines[20] = '{"ph":"X","cat":"wait","ts":"never"},'
    lines[21] = "�\x00 nonsense"
    path.write_text("\n".join(lines))


def lose_a_rank(folder: Path) -> None:
    (folder / "rank-1.json").unlink()


def lose_steps(folder: Path) -> None:
    keep_events(folder / "rank-0.json", lambda event: event.get("args", {}).get("step", 0) <= 7)


def lose_arrivals(folder: Path) -> None:
    keep_events(folder / "rank-0.json", lambda event: event.get("cat") != "wire-in")


def lose_a_file_to_others(folder: Path) -> None:
    (folder / "rank-2.json").write_text(json.dumps({"a": [1, 2, 3]}, indent=1))


def mix_in_another_run(folder: Path) -> None:
    write_trace(folder, {2: make_trace(Job(ranks=4, steps=9, started="beef4567"))[2]})


def come_from_the_future(folder: Path) -> None:
    path = folder / "rank-2.json"
    path.write_text(path.read_text().replace('"format":1', '"format":2'))


def make_unreadable(folder: Path) -> None:
    (folder / "rank-2.json").unlink()
    (folder / "rank-2.json").mkdir()


def keep_events(path: Path, is_kept: Callable[[Event], bool]) -> None:
    path.write_text(to_lines(filter(is_kept, json.loads(path.read_text()))))


@pytest.mark.parametrize(
    ("damage", "words", "counted"),
    [
        (cut_last_line, "rank-1.json: cut off in the middle of an event; was rank 1 killed", (6, 7, 8, 9)),
        (cut_in_the_middle, "Steps 7 to 9: not on rank 1, so not counted.", (1, 2, 3, 4, 5, 6)),
        (cut_early, "Rank 1: no complete step, so not part of this page.", (6, 7, 8, 9)),
        (spoil_a_line, "rank-2.json: left out 2 lines without a valid event.", (6, 7, 8, 9)),
        (lose_a_rank, "Rank 1 of 3: no trace; copy rank-*.json of every host", (6, 7, 8, 9)),
        (lose_steps, "Steps 8 to 9: not on rank 0, so not counted.", (1, 2, 3, 4, 5, 6, 7)),
        (lose_arrivals, "slices that were sent are not in the files of their receivers.", (6, 7, 8, 9)),
        (lose_a_file_to_others, "rank-2.json: not a trace of undertow.", (6, 7, 8, 9)),
        (
            mix_in_another_run,
            "Rank 2 left out, from another run (4 workers, run beef4567): this page is about 3 workers, run feed0123.",
            (6, 7, 8, 9),
        ),
        (come_from_the_future, "rank-2.json: format 2, written by a newer undertow than this one.", (6, 7, 8, 9)),
        (make_unreadable, "rank-2.json: cannot be read (Is a directory).", (6, 7, 8, 9)),
    ],
)
def test_damage_is_named_and_the_rest_is_counted(
    folder: Path, damage: Damage, words: str, counted: tuple[int, ...]
) -> None:
    damage(folder)
    analysis = study(read(folder)).analysis
    assert [gap for gap in analysis.missing if words in gap], analysis.missing
    assert analysis.counted == counted
    check_parts(analysis)


def check_parts(analysis: Analysis) -> None:
    for row in analysis.ranks:
        assert sum(row.spent_ns.values()) == row.step_ns


def test_a_trace_without_any_complete_step_says_so(folder: Path) -> None:
    for rank in range(3):
        keep_events(folder / f"rank-{rank}.json", lambda event: event.get("cat") != "step")
    found = study(read(folder))
    assert found.analysis.summary[0].startswith("No step was recorded completely by all ranks")
    assert (found.analysis.counted, found.analysis.advice, found.steps.shown) == ((), (), {})


def change_events(path: Path, change: Callable[[Event], Event]) -> None:
    path.write_text(to_lines(map(change, json.loads(path.read_text()))))


def test_a_step_that_takes_no_time_does_not_count(folder: Path) -> None:
    for rank in range(3):
        change_events(
            folder / f"rank-{rank}.json", lambda event: {**event, "dur": 0} if event.get("cat") == "step" else event
        )
    assert study(read(folder)).analysis.counted == ()


def test_a_plan_for_no_worker_is_ignored(tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "trace", make_trace(Job(ranks=3, steps=9, has_plan=True)))
    assert study(read(folder)).analysis.prediction is not None
    for rank in range(3):
        path = folder / f"rank-{rank}.json"
        path.write_text(re.sub(r'"workers":\s*3', '"workers":0', path.read_text()))
    assert study(read(folder)).analysis.prediction is None


def test_ranks_without_a_common_step_have_no_complete_step(folder: Path) -> None:
    keep_events(folder / "rank-0.json", lambda event: event.get("args", {}).get("step", 0) < 4)
    keep_events(folder / "rank-1.json", lambda event: event.get("args", {}).get("step", 99) >= 4)
    assert study(read(folder)).analysis.counted == ()


@pytest.mark.parametrize("name", ["rank-0.json", "trace.json", "rank-x.json", "other.txt"])
def test_a_folder_without_traces_gives_none(tmp_path: Path, name: str) -> None:
    assert read_trace(tmp_path) is None
    (tmp_path / name).write_text('[\n{"ph":"X","name":"of somebody else","pid":0,"ts":1,"dur":2}\n]\n')
    assert read_trace(tmp_path) is None


@pytest.mark.parametrize("length", range(0, 6000, 379))
def test_a_file_cut_anywhere_is_read(folder: Path, length: int) -> None:
    path = folder / "rank-0.json"
    path.write_bytes(path.read_bytes()[:length])
    trace = read(folder)
    assert any("rank-0.json" in gap for gap in trace.missing)
    study(trace)


def test_progress_is_reported_for_every_file(folder: Path) -> None:
    progress = FakeProgress()
    read_trace(folder, progress)
    assert (progress.expected, progress.done) == (3, 3)
    assert progress.said[0] == "reading the traces: rank-0.json"
