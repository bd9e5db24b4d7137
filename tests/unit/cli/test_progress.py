"""The display of progress: a bar in a terminal, otherwise lines, and nothing for short work."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from undertow.cli.progress import BAR, SHORT_S, SILENCE_S, ProgressBar, ProgressCount, ProgressLines, show_left


class Now:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def __call__(self) -> float:
        return self.time_s


@pytest.fixture
def now() -> Now:
    return Now()


# Progress


def test_a_share_is_done_over_expected_and_at_most_one(now: Now) -> None:
    count = ProgressCount(now)
    assert count.share is None
    count.expect(3)
    count.expect(1)
    count.advance()
    count.advance(0.5)
    assert count.share == pytest.approx(1.5 / 4)
    count.advance(10)
    assert count.share == 1.0


def test_the_time_left_follows_the_pace_so_far_and_counts_down_between_laps(now: Now) -> None:
    count = ProgressCount(now)
    count.expect(4)
    now.time_s += 10
    count.advance()
    assert count.left_s == pytest.approx(30)
    now.time_s += 4
    assert count.left_s == pytest.approx(26)
    now.time_s += 100
    assert count.left_s == 0.0


def test_the_time_left_is_unknown_at_the_beginning(now: Now) -> None:
    count = ProgressCount(now)
    assert count.left_s is None
    count.expect(1000)
    now.time_s += 1
    count.advance(99)
    assert count.left_s is None
    count.advance(1)
    assert count.left_s == pytest.approx(9)


@pytest.mark.parametrize(
    ("left_s", "words"),
    [
        (0.0, "about 1 s left"),
        (58.2, "about 59 s left"),
        (119.0, "about 119 s left"),
        (125.0, "about 2 min left"),
        (5400.0, "about 90 min left"),
    ],
)
def test_the_time_left_is_rounded(left_s: float, words: str) -> None:
    assert show_left(left_s) == words


# ProgressLines


@pytest.fixture
def said() -> list[str]:
    return []


def test_short_work_shows_nothing(now: Now, said: list[str]) -> None:
    count = ProgressCount(now)
    lines = ProgressLines(count, said.append)
    count.say("resnet50, hosts 1: ddp")
    now.time_s += 0.9 * SHORT_S
    lines.update()
    assert said == []


def test_each_subject_is_one_line_with_its_share(now: Now, said: list[str]) -> None:
    count = ProgressCount(now)
    lines = ProgressLines(count, said.append)
    count.expect(4)
    for text in ("vgg19: starting ddp", "vgg19, 10 Gbit/s: ddp", "vgg19, 10 Gbit/s: undertow", "vgg19, 20 Gbit/s: ddp"):
        count.say(text)
        now.time_s += 10
        lines.update()
        count.advance()
    assert said == [
        "vgg19: starting ddp (0 %)",
        "vgg19, 10 Gbit/s: ddp (25 %, about 20 s left)",
        "vgg19, 20 Gbit/s: ddp (75 %, about 1 s left)",
    ]


def test_quick_changes_of_the_subject_are_not_all_written(now: Now, said: list[str]) -> None:
    count = ProgressCount(now)
    lines = ProgressLines(count, said.append)
    for number in range(200):
        count.say(f"point {number}")
        now.time_s += 0.1
        lines.update()
    assert 8 <= len(said) <= 10
    assert all("%" not in line for line in said)  # the total is unknown


def test_long_silence_is_broken(now: Now, said: list[str]) -> None:
    count = ProgressCount(now)
    lines = ProgressLines(count, said.append)
    count.expect(200)
    for seed in range(100):
        count.say(f"running 200 seeds: {seed}")
        now.time_s += 1
        lines.update()
        count.advance()
    assert len(said) == 1 + int(100 / SILENCE_S)
    assert said[-1] == "running 200 seeds: 91 (46 %, about 108 s left)"


# A bar


def draw(count: ProgressCount, width: int = 120) -> tuple[ProgressBar, StringIO]:
    screen = StringIO()
    return ProgressBar(count, Console(file=screen, force_terminal=True, width=width)), screen


def test_a_bar_is_shown_unless_the_work_is_short(now: Now) -> None:
    count = ProgressCount(now)
    bar, screen = draw(count)
    count.say("resnet50")
    now.time_s += 0.9 * SHORT_S
    bar.update()
    bar.close()
    assert screen.getvalue() == ""


def test_a_bar_shows_the_share_and_is_removed(now: Now) -> None:
    count = ProgressCount(now)
    bar, screen = draw(count)
    count.expect(4)
    count.say("vgg19, [red] 10 Gbit/s: ddp, round 1")
    now.time_s += 10
    count.advance()
    bar.update()
    bar.close()
    shown = screen.getvalue()
    assert "25 %" in shown
    assert "about 30 s left" in shown
    assert "vgg19, [red] 10 Gbit/s: ddp, round 1" in shown
    assert shown.endswith("\x1b[2K")  # its line is cleared


def test_a_long_text_is_cut_and_the_bar_stays(now: Now) -> None:
    count = ProgressCount(now)
    bar, screen = draw(count, width=80)
    count.expect(1)
    count.advance()
    count.say("what is done now, " * 20)
    now.time_s += 10
    bar.update()
    bar.close()
    assert "━" * BAR in screen.getvalue()
    assert "…" in screen.getvalue()


def test_a_bar_without_a_total_shows_no_share(now: Now) -> None:
    count = ProgressCount(now)
    bar, screen = draw(count)
    count.say("undertow on 48 hosts")
    count.advance(7)
    now.time_s += 10
    bar.update()
    bar.close()
    assert bar._progress.tasks[0].total is None  # without a total
    assert "undertow on 48 hosts" in screen.getvalue()
    assert "%" not in screen.getvalue()
    assert "left" not in screen.getvalue()
