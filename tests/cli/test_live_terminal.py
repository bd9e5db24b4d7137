"""`undertow run --live` on a terminal: frames that follow the window, and an end as without it."""

from __future__ import annotations

import re
import signal

import pytest

from tests.support.command import Cli, is_alive
from tests.support.live_jobs import FAIL, LATE, LINGER, TRAIN, UNTIL_TOLD, Terminal

COLOURED = re.compile(rb"\x1b\[(?:\d+;)*3[1-7]m")


@pytest.fixture(autouse=True)
def no_hint_about_threads(cli: Cli) -> None:
    cli.environment["OMP_NUM_THREADS"] = "1"


def has(rows: list[str], *words: str) -> bool:
    return all(any(word in row for row in rows) for word in words)


def test_the_dashboard_follows_the_job_and_the_window(cli: Cli) -> None:
    terminal = Terminal(cli, "--live", "-n", 2, cli.write(TRAIN + UNTIL_TOLD))
    frame = terminal.wait_until(
        lambda rows: has(rows, "step 40", "loss 0.5 of rank 0", "2 ranks") and rows[5:6] != [""]
    )
    assert "script.py" in frame[0]
    assert frame[3].split()[:5] == ["rank", "host", "state", "step", "waits"]
    assert frame[3].split()[-2:] == ["out", "in"]
    assert [row.split()[0] for row in frame[4:6]] == ["0", "1"]
    assert not has(frame, "of rank 1")
    assert has(frame, "a warning")  # of rank 0
    terminal.resize(60, 12)
    narrow = terminal.wait_until(lambda rows: rows[3].split()[-1:] == ["waits"])
    assert not has(narrow, "out")
    (cli.folder / "enough").touch()
    code, left = terminal.finish()
    assert code == 0
    assert has(left, "step 42", "done", "ended", "loss 0.5 of rank 0")


@pytest.mark.parametrize(("no_color", "before"), [("", ""), ("1", LINGER)], ids=["coloured", "slow to exit"])
def test_a_worker_that_dies_has_the_last_word_as_without(cli: Cli, no_color: str, before: str) -> None:
    cli.environment["NO_COLOR"] = no_color
    script = cli.write(before + TRAIN + FAIL)
    terminal = Terminal(cli, "--live", "-n", 2, script, columns=120, lines=50)
    code, left = terminal.finish()
    assert code == 1
    told = [row for row in left if row]
    assert told[-1] == "ValueError: the very first cause"
    without = cli.run("run", "-n", 2, "--quiet-ranks", script).stderr
    assert cut_verdict(terminal.seen.decode().replace("\r\n", "\n")) == cut_verdict(without)
    assert has(told, "ended: exit code 1")
    assert bool(COLOURED.search(terminal.seen)) is not bool(no_color)
    if before:
        assert LATE in without


def cut_verdict(text: str) -> str:
    return text[text.rindex("rank 1 (host") :].replace(LATE, "")


def test_an_interrupt_gives_the_terminal_back(cli: Cli) -> None:
    terminal = Terminal(cli, "--live", cli.write(TRAIN + "    mark('pid', os.getpid())" + UNTIL_TOLD))
    terminal.wait_until(lambda rows: has(rows, "step 40"))
    terminal.process.send_signal(signal.SIGINT)
    code, left = terminal.finish()
    assert code == 130
    assert [row for row in left if row][-1] == "undertow: interrupted by SIGINT, all workers have ended"
    # The other screen was left, and the cursor is there again.
    assert terminal.seen.count(b"\x1b[?1049h") == terminal.seen.count(b"\x1b[?1049l") == 1
    assert terminal.seen.rindex(b"\x1b[?25h") > terminal.seen.rindex(b"\x1b[?25l")
    assert not is_alive(int((cli.folder / "pid").read_text()))


def test_a_terminal_that_can_do_nothing_gets_lines(cli: Cli) -> None:
    terminal = Terminal(cli, "--live", cli.write(TRAIN), kind="dumb")
    code, left = terminal.finish()
    assert code == 0
    assert has(left, "loss 0.5 of rank 0", "undertow: step 40")
    assert b"\x1b[?1049h" not in terminal.seen
