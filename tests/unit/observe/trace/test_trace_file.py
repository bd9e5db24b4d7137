"""Trace files: written while the job runs, readable at any time, and merged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.perfetto import Event, find_faults, read_events
from undertow.errors import ConfigError
from undertow.observe.trace.chrome import TraceHeader
from undertow.observe.trace.merging import merge
from undertow.observe.trace.trace_file import TraceFile
from undertow.tracing import events
from undertow.tracing.events import TraceEvent
from undertow.tracing.window import Window, parse_window


def about(rank: int = 0, world_size: int = 2) -> TraceHeader:
    return TraceHeader(rank=rank, world_size=world_size, host=f"host{rank}", version="0.1.0", started="abc")


def train(step: int) -> list[TraceEvent]:
    return [
        events.ForwardBegan(step, 0),
        events.Forward(step + 0.1, step + 0.2, "fc"),
        events.PassBegan(step + 0.3, 0, step),
        events.Hooked(step + 0.4, step + 0.5, "fc.weight"),
        events.PassEnded(step + 0.6, 0, step),
    ]


def list_steps(told: list[Event], cat: str = "step") -> list[int]:
    return [event["args"]["step"] for event in told if event.get("cat") == cat]


def test_a_trace_can_be_read_while_the_job_runs(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, about(), parse_window("all"))
    file.take(train(1))
    written = (tmp_path / "rank-0.json").read_text()
    assert written.startswith("[\n")
    assert not written.endswith("]\n")
    told = json.loads(written + "]")  # nothing else is missing
    assert list_steps(told, "forward") == [1]
    file.take(train(2))
    file.close()
    assert find_faults(read_events(tmp_path / "rank-0.json")) == []
    assert list_steps(read_events(tmp_path / "rank-0.json")) == [1]


def test_only_chosen_steps_and_their_facts_are_written(tmp_path: Path) -> None:
    ended = []
    file = TraceFile(tmp_path, about(), parse_window("3:4"), lambda: ended.append("full"))
    file.take([events.Named(0.5, "the parameters", "mean", {1: ("fc.weight",)}), events.Linked(0.6, 1e8)])
    for step in range(1, 8):
        file.take(train(step))
    file.close()
    told = read_events(tmp_path / "rank-0.json")
    assert list_steps(told) == [3, 4]
    assert list_steps(told, "hook") == [3, 4]
    assert {"undertow.table", "undertow.link", "thread_name"} <= {event["name"] for event in told}
    assert [event["args"] for event in told if event["name"] == "undertow.end"] == [
        {"reason": "only steps 3 to 4 were requested"}
    ]
    assert ended == ["full"]
    assert find_faults(told) == []


def test_a_rank_waits_until_its_clock_was_compared(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, about(rank=1), parse_window("all"))
    file.take(train(1))
    assert "forward" not in (tmp_path / "rank-1.json").read_text()
    file.take([events.Compared(1.7, 99.0, 0.4), events.Compared(1.8, 100.0, 0.001)])
    file.close()
    (forward,) = (event for event in read_events(tmp_path / "rank-1.json") if event.get("cat") == "forward")
    assert forward["ts"] == pytest.approx(101.1e6)


def test_a_job_too_short_to_compare_clocks_is_written(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, about(rank=1), parse_window("all"))
    file.take(train(1))
    file.close()
    assert list_steps(read_events(tmp_path / "rank-1.json"), "forward") == [1]


def write(folder: Path, rank: int) -> Path:
    file = TraceFile(folder, about(rank), parse_window("all"))
    file.take([events.Compared(0.1, 0.0, 0.001), *train(1), *train(2)])
    file.close()
    return folder / f"rank-{rank}.json"


def test_traces_are_merged(tmp_path: Path) -> None:
    singles = [read_events(write(tmp_path, rank)) for rank in range(12)]
    merged = merge(tmp_path)
    assert merged == tmp_path / "trace.json"
    assert read_events(merged) == [event for single in singles for event in single]
    assert find_faults(read_events(merged)) == []


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_trace_that_was_cut_off_is_merged_up_to_the_cut(tmp_path: Path, cut: int) -> None:
    whole, short = write(tmp_path, 0), write(tmp_path, 1)
    short.write_bytes(short.read_bytes()[:-cut])
    merged = merge(tmp_path)
    assert merged is not None
    told = read_events(merged)
    assert told[: len(read_events(whole))] == read_events(whole)
    assert any(event["pid"] == 1 and event.get("cat") == "hook" for event in told)


def test_a_trace_with_only_its_beginning_can_be_merged(tmp_path: Path) -> None:
    write(tmp_path, 0)
    (tmp_path / "rank-1.json").write_text("[")
    (tmp_path / "rank-2.json").write_text("")
    (tmp_path / "rank-x.json").write_text("not ours")
    merged = merge(tmp_path)
    assert merged is not None
    assert {event["pid"] for event in read_events(merged)} == {0}


def test_without_traces_nothing_is_merged(tmp_path: Path) -> None:
    assert merge(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "window"), [("20", Window(1, 20)), ("7:9", Window(7, 9)), ("all", Window(1, float("inf")))]
)
def test_steps_are_a_number_a_range_or_all(text: str, window: Window) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize("text", ["", "0", "0:5", "9:7", "-3", "3:", "ten", "1.5"])
def test_other_steps_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="trace steps"):
        parse_window(text)
