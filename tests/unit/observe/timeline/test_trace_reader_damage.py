"""For files in any state, `undertow report` makes a report or gives the reason in one line."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tests.support.damage import damage_bytes, damage_json
from tests.support.timeline_samples import Event, Job, make_trace, to_lines
from undertow.cli.report import describe
from undertow.errors import Garbled, UndertowError
from undertow.observe.report.step_page import make_step_page
from undertow.observe.timeline.analysis import study
from undertow.observe.timeline.trace_reader import read_trace
from undertow.observe.trace.merging import merge

MUTATIONS = 60


def render(folder: Path) -> str:
    """Return all output of `undertow report` for a folder; empty if it refuses with a reason."""
    try:
        trace = read_trace(folder)
        if trace is None:
            return ""
        found = study(trace, None)
        page = make_step_page(found)
        words = "\n".join(describe(found.analysis))
        figures = found.analysis.to_json().decode()
        json.loads(figures)
        merge(folder)
        assert "\x1b" not in words + page
        return page + words
    except UndertowError:
        return ""


def write_damaged(folder: Path, seed: int) -> None:
    dice = random.Random(seed)
    job = Job(ranks=dice.choice((1, 2, 3)), steps=3, layers=2, has_plan=dice.random() < 0.5)
    traces = make_trace(job)
    for path in folder.iterdir():
        path.unlink()
    victim = dice.randrange(job.ranks)
    for rank, events in traces.items():
        if rank == victim and dice.random() < 0.8:
            events = _damage(dice, list(events))
            text = "[\n" + ",\n".join(json.dumps(event) for event in events) + "\n]\n"
        else:
            text = to_lines(events)
        data = text.encode(errors="surrogatepass")
        if rank == victim and dice.random() < 0.3:
            data = damage_bytes(dice, data)
        (folder / f"rank-{rank}.json").write_bytes(data)


def _damage(dice: random.Random, events: list[Event]) -> list[Event]:
    """Damage any line, or one of the few that all others depend on."""
    facts = [place for place, event in enumerate(events) if event["ph"] == "M"]
    if not facts or dice.random() < 0.5:
        return damage_json(dice, events)
    place = dice.choice(facts)
    return [*events[:place], *damage_json(dice, [events[place]]), *events[place + 1 :]]


@pytest.mark.parametrize("first", range(0, MUTATIONS, 20))
def test_a_damaged_trace_is_reported_or_refused(tmp_path: Path, first: int) -> None:
    made = 0
    for seed in range(first, first + 20):
        write_damaged(tmp_path, seed)
        made += bool(render(tmp_path))
    assert made > 5  # otherwise the damage is too great to test anything


def test_paths_that_are_not_files_are_left_out(tmp_path: Path) -> None:
    """Reading a FIFO would wait forever for a writer."""
    for rank, events in make_trace(Job(ranks=2, steps=3, layers=2)).items():
        (tmp_path / f"rank-{rank}.json").write_text(to_lines(events))
    (tmp_path / "rank-2.json").mkdir()
    os.mkfifo(tmp_path / "rank-3.json")
    (tmp_path / "rank-4.json").symlink_to(tmp_path / "nowhere")
    trace = read_trace(tmp_path)
    assert trace is not None
    assert sorted(trace.ranks) == [0, 1]
    assert any(gap.startswith("rank-3.json: ") for gap in trace.missing)
    assert render(tmp_path)


def test_traces_that_cannot_be_read_are_not_called_absent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.json")
    with pytest.raises(
        Garbled, match=r"no trace in .* can be read\. rank-0\.json: cannot be read \(not a regular file\)"
    ):
        read_trace(tmp_path)


@pytest.mark.parametrize("key", ["\u00b2", "9" * 5000, "-1", ""])
def test_keys_of_a_table_that_are_not_numbers_are_left_out(tmp_path: Path, key: str) -> None:
    events = make_trace(Job(ranks=1, steps=3, layers=2))[0]
    table = next(event for event in events if event["name"] == "undertow.table")
    table["args"]["tensors"][key] = ["layer0.weight"]
    (tmp_path / "rank-0.json").write_text(to_lines(events))
    assert render(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"ts": 1e300},
        {"dur": -5.0},
        {"dur": 1e18},
        {"step": 1 << 60},
        {"bytes": -1},
        {"from": 1 << 40},
        {"queued": 1e308},
    ],
)
def test_an_event_with_impossible_figures_is_left_out(tmp_path: Path, change: dict[str, float]) -> None:
    events = make_trace(Job(ranks=1, steps=3, layers=2))[0]
    place = next(number for number, event in enumerate(events) if event["ph"] == "X")
    name, value = next(iter(change.items()))
    (events[place] if name in ("ts", "dur") else events[place]["args"])[name] = value
    (tmp_path / "rank-0.json").write_text(to_lines(events))
    trace = read_trace(tmp_path)
    assert trace is not None
    assert "rank-0.json: left out 1 line without a valid event." in trace.missing


def test_names_in_a_trace_are_made_safe_for_terminal_and_page(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\x1b[31m<script>alert(1)</script>\r\u202e"
    text = to_lines(make_trace(Job(ranks=2, steps=3, layers=2))[0])
    for name in ("layer0.weight", "train.py", "feed0123"):
        assert name in text
        text = text.replace(name, json.dumps(evil)[1:-1])
    (tmp_path / "rank-0.json").write_text(text)
    shown = render(tmp_path)
    assert "&lt;script&gt;alert(1)" in shown
    assert "<script>alert" not in shown.partition("</html>")[0]
    assert not set("\x1b\x07\u202e") & set(shown)
