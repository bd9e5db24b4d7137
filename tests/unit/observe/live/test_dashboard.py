"""A frame of the live view fits in any terminal and shows what matters most."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tests.support.live_samples import make_job_state, make_report, make_snapshot
from undertow.observe.live.dashboard import MOST_ROWS, draw
from undertow.observe.live.job_state import DONE, JobSnapshot, JobState


def render(snapshot: JobSnapshot, width: int, height: int = 24, notices: tuple[str, ...] = ()) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(draw(snapshot, width=width, height=height, notices=notices))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_frame_has_header_ranks_and_the_last_lines() -> None:
    job = make_job_state(2)
    job.lines.feed(1, b"epoch 1\nloss 0.5\n")
    frame = [line.rstrip() for line in render(job.take_snapshot(101.0), 130)]
    assert frame[0] == "train.py  1:41  step 1240  8.3 steps/s  2 ranks"
    assert frame[1] == "waits 9 %, most for conv1.weight   slowest layer fc6 31 ms"
    headings = ["rank", "host", "state", "step", "waits", "most", "for", "slowest", "layer", "per", "step", "out", "in"]
    assert frame[3].split() == headings
    cells = "1 node1 computing 1240 9 % conv1.weight fc6 31 ms 93 MB/s 79 % 92 MB/s 78 %"
    assert frame[5].split() == cells.split()
    assert frame[-3:] == ["rank 0", "epoch 1", "loss 0.5"]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 130, 200])
@pytest.mark.parametrize("height", [9, 24, 60])
@pytest.mark.parametrize("ranks", [1, 4, 250])
def test_a_frame_fits_in_any_terminal(width: int, height: int, ranks: int) -> None:
    long = "features.very.long.name.of.a.layer"
    job = make_job_state(ranks, waits_for=f"{long}.weight", layer=long, host="host.of.a.large.cluster")
    job.lines.feed(1, b"".join(b"line %d %s\n" % (number, b"x" * 300) for number in range(50)))
    job.end_job("rank 1 (host a) failed first: exit code 1")
    frame = render(job.take_snapshot(101.0), width, height, ("a notice",) * 5)
    assert len(frame) <= height
    assert max(map(len, frame)) <= width


@pytest.mark.parametrize("host", ["", "a", "vm", "node17", "host.of.a.large.cluster"])
@pytest.mark.parametrize("width", [60, 80, 100])
def test_every_column_that_is_shown_is_complete(host: str, width: int) -> None:
    job = JobState("train.py", now_s=0.0)
    job.expect({0: host}, 1)
    job.add_report(make_report(0, host=host), 100.0)
    frame = render(job.take_snapshot(101.0), width)
    assert "…" not in frame[3]
    assert frame[4].rstrip().endswith("9 %" if width == 60 else "92 MB/s  78 %")


def test_narrow_terminals_lose_the_least_important_columns_first() -> None:
    seen = [" ".join(render(make_snapshot(1), width)[3].split()) for width in (60, 80, 100, 130)]
    assert seen == [
        "rank host state step waits",
        "rank host state step waits out in",
        "rank host state step waits most for out in",
        "rank host state step waits most for slowest layer per step out in",
    ]


def test_of_many_ranks_the_troubled_and_both_extremes_are_shown() -> None:
    job = JobState("train.py", now_s=0.0)
    job.expect({}, 48)
    for rank in range(48):
        job.add_report(make_report(rank, wait_share=rank / 100), 100.0 if rank != 20 else 90.0)
    frame = render(job.take_snapshot(101.0), 100, 60)
    ranks = [int(line.split()[0]) for line in frame if re.match(r" *\d+ ", line)]
    assert len(ranks) == MOST_ROWS - 1
    assert {0, 20, 47} <= set(ranks)
    assert ranks == sorted(ranks)
    assert "and 29 more like these" in [line.strip() for line in frame]


def test_a_rank_without_figures_and_the_end_of_the_job_are_shown() -> None:
    job = make_job_state(1)
    job.expect({0: "node0", 1: "node1"}, 2)
    job.end_rank(0, DONE)
    job.end_job("done")
    frame = render(job.take_snapshot(101.0), 100)
    assert frame[0].rstrip().endswith("2 ranks, 1 reporting")
    assert frame[2].rstrip() == "done"
    assert frame[5].split()[2] == "ended"
    assert frame[6].split()[:4] == ["1", "node1", "starting", "-"]


def test_notices_and_markup_are_text() -> None:
    job = make_job_state(1)
    job.lines.feed(1, b"[bold]loss[/bold] :smile:\n")
    frame = render(job.take_snapshot(101.0), 100, notices=("undertow: rank 1 is [red]stopped\x1b[2J",))
    assert "undertow: rank 1 is [red]stopped" in [line.rstrip() for line in frame]
    assert frame[-1].rstrip() == "[bold]loss[/bold] :smile:"
