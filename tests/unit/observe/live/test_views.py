"""The views of a snapshot: a line, a frame, metrics."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tests.support.live_samples import make_job_state, make_report, make_snapshot
from undertow.observe.live import displays
from undertow.observe.live.dashboard import MOST_ROWS, draw
from undertow.observe.live.displays import LogDisplay
from undertow.observe.live.job_state import DONE, JobSnapshot, JobState
from undertow.observe.live.metrics import write_metrics


def test_a_line_has_all_figures() -> None:
    assert displays.describe(make_snapshot(1)) == (
        "step 1240, 8.3 steps/s, 9 % waiting (most for conv1.weight), out 93 MB/s, in 92 MB/s, slowest layer fc6 31 ms"
    )
    assert ", in 92 MB/s each, " in displays.describe(make_snapshot(2))


def test_unknown_figures_are_left_out() -> None:
    job = JobState("train.py", now_s=0.0)
    job.expect({0: "a"}, 1)
    assert displays.describe(job.take_snapshot(1.0)) == "no worker has reported yet"
    job.add_report(make_report(0, steps=0, wait_share=0.0, layer=""), 1.0)
    assert displays.describe(job.take_snapshot(1.0)) == "no step seen yet, 0 % waiting, out 93 MB/s, in 92 MB/s"


def test_the_turn_of_another_job_is_named() -> None:
    assert "40 % other job's turn" in displays.describe(make_snapshot(1, turn_share=0.4))


def test_an_alarm_is_written_immediately_and_once() -> None:
    said: list[str] = []
    now = [100.0]
    log = LogDisplay(said.append, lambda: now[0])
    job = make_job_state(2)
    log.start()
    for now[0] in (101.0, 105.5, 106.0):
        job.add_report(make_report(0, int(now[0])), now[0])
        log.show(job.take_snapshot(now[0]))
    assert said[0] == "rank 1 on host node1: silent for 6 s"
    assert len(said) == 2  # and the line that was due after five seconds
    job.add_report(make_report(1, 2), 107.0)
    log.show(job.take_snapshot(107.0))
    log.show(job.take_snapshot(112.1))
    assert said[2:] == ["rank 0 on host node0: silent for 6 s", "rank 1 on host node1: silent for 5 s"]


def test_a_failed_worker_is_no_alarm() -> None:
    job = make_job_state(1)
    job.end_rank(0, "exit code 1")
    assert displays.find_alarms(job.take_snapshot(101.0), set()) == []


def test_the_last_line_is_not_written_twice() -> None:
    said: list[str] = []
    log = LogDisplay(said.append, lambda: 105.0)
    log.show(make_snapshot(1))
    log.finish(make_snapshot(1))
    assert len(said) == 1


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


# The grammar of the text format, version 0.0.4
_SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)')


def read_metrics(text: str) -> dict[str, float]:
    samples = {}
    helped: set[str] = set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped.add(line.split()[2])
        elif not line.startswith("# TYPE "):
            match = _SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] in helped
            samples[f"{match[1]}{{{match[2]}}}"] = float(match[3])
    return samples


def test_metrics_have_every_rank_with_its_labels() -> None:
    samples = read_metrics(write_metrics(make_snapshot(2)))
    label = '{rank="1",host="node1"}'
    assert samples[f"undertow_steps_total{label}"] == 1240
    assert samples[f"undertow_step_rate{label}"] == 8.31
    assert samples[f"undertow_wait_ratio{label}"] == 0.09
    assert samples[f"undertow_wait_seconds_total{label}"] == 13.5
    assert samples[f"undertow_bytes_out_total{label}"] == 14_000_000_000
    assert samples[f"undertow_bytes_in_total{label}"] == 13_000_000_000
    assert samples[f"undertow_link_bytes_per_second{label}"] == 118e6
    assert samples[f"undertow_rank_up{label}"] == 1
    assert samples['undertow_slowest_layer_seconds{rank="1",host="node1",layer="fc6"}'] == pytest.approx(0.0312)


def test_metrics_of_a_rank_that_is_silent_or_has_not_reported() -> None:
    job = make_job_state(1)
    job.expect({0: "a", 1: "b"}, 2)
    samples = read_metrics(write_metrics(job.take_snapshot(200.0)))
    assert samples['undertow_rank_up{rank="0",host="a"}'] == 0
    assert samples['undertow_rank_up{rank="1",host="b"}'] == 0
    assert 'undertow_steps_total{rank="1",host="b"}' not in samples


def test_labels_are_escaped() -> None:
    job = JobState("train.py", now_s=0.0)
    job.expect({0: 'a"b\\c'}, 1)
    job.add_report(make_report(0, layer='x"y'), 0.0)
    text = write_metrics(job.take_snapshot(0.0))
    assert r'undertow_rank_up{rank="0",host="a\"b\\c"} 1' in text
    assert r'layer="x\"y"' in text
    read_metrics(text)
