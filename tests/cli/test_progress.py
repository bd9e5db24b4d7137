"""What a terminal, and what a file, gets to see of a command's progress."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from undertow.cli import progress
from undertow.cli.progress import open_progress
from undertow.launch.cleanup_guard import CleanupGuard

# The package has a function of this name too.
plan_command = importlib.import_module("undertow.cli.plan")


@contextmanager
def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Inside of the block stderr is one, and no work is short; read here what it shows.

    No fixture: between set-up and test pytest puts its own stderr there again.
    """
    reader, writer = os.openpty()
    with open(writer, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "120")
        patch.setattr(sys, "stderr", stream)
        patch.setattr(progress, "SHORT_S", 0.0)
        yield reader
    os.close(reader)


def read_until(reader: int, words: str) -> str:
    seen = ""
    while words not in seen:
        seen += os.read(reader, 4096).decode(errors="replace")
    return seen


def test_in_a_terminal_a_bar_moves_by_itself_and_stdout_stays_free(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with open_terminal(monkeypatch) as terminal, open_progress() as work:
        work.say("resnet50")
        read_until(terminal, "resnet50")
        work.expect(2)
        read_until(terminal, " 0 %")
        work.advance()
        read_until(terminal, " 50 %")
        print("a table")
    assert capfd.readouterr().out == "a table\n"
    assert not any(thread.name == "undertow-progress" for thread in threading.enumerate())


def test_an_error_of_the_work_takes_the_bar_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(terminal: int) -> None:
        with open_progress() as work:
            work.say("resnet50")
            read_until(terminal, "resnet50")
            raise ValueError("broken")

    with open_terminal(monkeypatch) as terminal:
        with pytest.raises(ValueError, match="broken"):
            fail(terminal)
        read_until(terminal, "\x1b[?25h")  # the cursor is back
    assert not any(thread.name == "undertow-progress" for thread in threading.enumerate())


def test_what_a_script_prints_stands_above_the_bar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bar and script wait for each other, so none of this depends on how fast they are."""
    source = """if True:
        import pathlib, sys, time
        while not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.01)
        print("step 1", flush=True)
        while not pathlib.Path(sys.argv[2]).exists():
            time.sleep(0.01)
        sys.exit(3)
    """
    bar, end = tmp_path / "bar", tmp_path / "end"
    above: list[str] = []

    def look(terminal: int) -> None:
        read_until(terminal, "running the first steps")
        bar.touch()
        above.append(read_until(terminal, "step 1").partition("step 1")[0])
        read_until(terminal, "running the first steps")
        end.touch()

    with open_terminal(monkeypatch) as terminal:
        looking = threading.Thread(target=look, args=[terminal], daemon=True)
        looking.start()
        command = [sys.executable, "-c", source, str(bar), str(end)]
        with closing(CleanupGuard()) as guard:
            assert plan_command._run(command, os.environ, "running the first steps", guard) == 3
        looking.join()
    assert above[0].endswith("\x1b[2K")  # the bar was wiped first


def test_a_file_gets_lines_whatever_colours_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "SHORT_S", 0.0)
    seen = ""
    with open_progress() as work:
        work.say("resnet50")
        while not seen.endswith("\n"):
            time.sleep(0.01)
            seen += capfd.readouterr().err
    assert seen == "undertow: resnet50\n"


def test_short_work_leaves_no_trace(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHORT_S", 3600.0)
    monkeypatch.setattr(progress, "UPDATE_S", 0.001)
    with open_progress() as work:
        work.expect(1)
        work.say("resnet50")
        time.sleep(0.05)
        work.advance()
    assert capfd.readouterr() == ("", "")
