"""The board: the newest of every rank, in words that cannot harm a terminal."""

from __future__ import annotations

import pytest

from tests.unit.live_samples import make_board, make_pulse
from undertow.live.board import DONE, HISTORY, SILENT_S, Board
from undertow.live.lines import KEPT_LINES, LastLines
from undertow.live.pulse import State
from undertow.live.wording import format_ms, format_rate, format_share, format_speed, format_time
from undertow.plain_text import clean


def test_a_rank_that_was_started_and_not_heard_of_is_starting() -> None:
    board = Board("train.py", now_s=0.0)
    board.expect({0: "a", 1: "a"}, 4)
    picture = board.look(50.0)
    assert [(row.rank, row.host, row.state, row.pulse) for row in picture.rows] == [
        (0, "a", "starting", None),
        (1, "a", "starting", None),
    ]
    assert (picture.world_size, picture.heard, picture.steps, picture.elapsed_s) == (4, 0, 0, 50.0)


def test_ranks_of_other_hosts_come_with_their_first_pulse() -> None:
    board = Board("train.py", now_s=0.0)
    board.expect({0: "a"}, 4)
    board.hear(make_pulse(3, host="d"), 1.0)
    assert [(row.rank, row.host) for row in board.look(2.0).rows] == [(0, "a"), (3, "d")]


@pytest.mark.parametrize("rank", [-1, 2, 1 << 40])
def test_a_rank_that_does_not_exist_is_ignored(rank: int) -> None:
    board = make_board(2)
    board.hear(make_pulse(rank), 100.0)
    assert len(board.look(101.0).rows) == 2


def test_only_the_newest_counts_whatever_the_order_of_arrival() -> None:
    board = make_board(1)
    board.hear(make_pulse(0, 7, steps=70), 101.0)
    board.hear(make_pulse(0, 6, steps=60), 102.0)
    board.hear(make_pulse(0, 7, steps=99), 103.0)
    assert board.look(103.0).steps == 70
    assert board.look(101.0 + SILENT_S).rows[0].is_alarming  # a late one is no sign of life


def test_silence_is_alarming_until_the_next_word() -> None:
    board = make_board(2)
    assert not board.look(100.0 + SILENT_S - 0.1).rows[0].is_alarming
    row = board.look(107.0).rows[1]
    assert (row.state, row.is_alarming, row.is_up) == ("no word for 7 s", True, True)
    board.hear(make_pulse(1, 2), 107.5)
    assert board.look(108.0).rows[1].state == "computing"


def test_who_has_ended_is_not_missed() -> None:
    board = make_board(3)
    board.end(0, DONE)
    board.end(1, "exit code 3")
    board.hear(make_pulse(2, 2, state=State.ENDED), 101.0)
    rows = board.look(200.0).rows
    assert [row.state for row in rows] == ["ended", "ended: exit code 3", "ended"]
    assert [row.is_alarming for row in rows] == [False, True, False]
    assert [row.is_up for row in rows] == [False, False, False]


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"state": State.WAITING, "stands_for": "conv1.weight"}, "waiting for conv1.weight"),
        ({"state": State.WAITING, "stands_for": "conv1.weight", "stands_s": 12.3}, "waiting for conv1.weight, 12 s"),
        ({"state": State.WAITING}, "waiting"),
        ({"state": State.COMPUTING, "turn_share": 0.95}, "other job's turn"),
        ({"state": State.STARTING}, "starting"),
    ],
)
def test_a_state_is_told_in_words(figures: dict[str, object], words: str) -> None:
    assert make_board(1, **figures).look(100.0).rows[0].state == words


def test_the_whole_job_is_the_mean_of_those_who_still_run() -> None:
    board = make_board(3)
    board.hear(make_pulse(0, 2, wait_share=0.1, out_bytes_per_s=10e6, waits_for="a", layer="x", steps=5), 100.0)
    board.hear(make_pulse(1, 2, wait_share=0.3, out_bytes_per_s=30e6, waits_for="b", layer_ms_per_step=99.0), 100.0)
    board.end(2, DONE)
    picture = board.look(101.0)
    assert (picture.wait_share, picture.out_bytes_per_s) == (pytest.approx(0.2), 20e6)
    assert (picture.waits_for, picture.layer, picture.steps) == ("b", "fc6", 1240)


def test_the_last_figures_stay_when_all_have_ended() -> None:
    board = make_board(1)
    board.end(0, DONE)
    board.conclude("done")
    picture = board.look(101.0)
    assert (picture.verdict, picture.steps, picture.steps_per_s) == ("done", 1240, 8.31)


def test_history_is_short_and_in_order() -> None:
    board = Board("train.py", now_s=0.0)
    board.expect({0: "a"}, 1)
    board.note_history()
    assert board.look(0.0).history == []
    for number in range(1, HISTORY + 11):
        board.hear(make_pulse(0, number, steps_per_s=float(number)), 1.0)
        board.note_history()
    assert [point[0] for point in board.look(2.0).history] == [float(number) for number in range(11, HISTORY + 11)]


def test_nothing_of_a_worker_or_the_command_line_reaches_a_terminal_as_a_control() -> None:
    board = Board("tr\x1b[2Jain.py", now_s=0.0)
    board.expect({0: "ho\x07st"}, 1)
    names = {"layer": "fc\x1b]0;title\x07", "waits_for": "a\x9bb\u202ec", "stands_for": "\x1b[31mred\x1b[0m"}
    board.hear(make_pulse(0, state=State.WAITING, **names), 0.0)
    board.lines.feed(1, b"\x1b[2J\x1b]52;c;xx\x07loss\x08\x08 1\n")
    picture = board.look(0.0)
    row = picture.rows[0]
    assert row.pulse is not None
    shown = [picture.script, row.host, row.state, row.pulse.layer, row.pulse.waits_for, *picture.lines]
    assert all(text.isprintable() for text in shown)
    assert (picture.script, row.pulse.layer, row.state) == ("train.py", "fc", "waiting for red")
    assert picture.lines == ["loss\ufffd\ufffd 1"]


def test_lines_are_as_a_terminal_shows_them() -> None:
    lines = LastLines()
    lines.feed(1, b"one\r\ntw")
    lines.feed(2, b"10 %\r20 %")
    lines.feed(1, b"o\n")
    assert lines.last() == ["one", "two", "20 %"]
    lines.feed(2, b"\r30 %\r")
    assert lines.last() == ["one", "two", "30 %"]


def test_only_the_last_lines_are_kept_and_no_line_is_endless() -> None:
    lines = LastLines()
    lines.feed(1, b"".join(b"%d\n" % number for number in range(1000)))
    assert lines.last() == [str(number) for number in range(1000 - KEPT_LINES, 1000)]
    lines.feed(1, b"x" * 1_000_000)
    assert len(lines.last()) == KEPT_LINES
    assert len(lines.last()[-1]) <= 500


def test_clean_text_stays_as_it_is() -> None:
    assert clean("layer.4 größe 日本 ✓") == "layer.4 größe 日本 ✓"
    assert clean("a\tb") == "a    b"


def test_figures_are_short() -> None:
    assert [format_rate(value) for value in (0, 999, 1500, 93.4e6, 1.25e9)] == [
        "0 B/s",
        "999 B/s",
        "1.5 kB/s",
        "93 MB/s",
        "1.2 GB/s",
    ]
    assert [format_speed(value) for value in (0, 8.31, 52.6, 0.25, 0.05)] == [
        "0 steps/s",
        "8.3 steps/s",
        "53 steps/s",
        "0.2 steps/s",
        "20 s/step",
    ]
    assert [format_ms(value) for value in (0.123, 31.2, 12_345)] == ["0.1 ms", "31 ms", "12 s"]
    assert [format_time(value) for value in (0, 63.9, 3723)] == ["0:00", "1:03", "1:02:03"]
    assert format_share(0.094) == "9 %"
