"""For tests of the live view: workers whose steps the test decides about, and what a terminal shows of them."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import struct
import subprocess
import termios
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pyte

from tests.support.command import HANG_S, Cli

# Real workers in a real group; only their steps are told instead of made, which needs no torch.
TRAIN = """
    import undertow
    from undertow.tracing import events
    from undertow.tracing.recorder import process_recorder as recorder

    def step(count):
        for number in range(count):
            recorder.record(events.PassBegan(recorder.clock(), 0, number))
            recorder.record(events.PassEnded(recorder.clock(), 0, number))

    undertow.init()
    step(40)
    print("loss 0.5 of rank", rank)
    print("a warning", file=sys.stderr)
"""
# Rank 0 notices at once, and need not be ended.  Not before both have come out of `init`, where its traceback is
# so long that it pushes the table off the screen.
FAIL = """
    from undertow.runtime import process
    process.default_group().barrier()
    if rank == 1:
        raise ValueError("the very first cause")
    process.default_group().barrier()
"""
# Rank 1 says goodbye to its peers, but its process does not end: as on a machine that is very slow.
LINGER = """
    import atexit
    if rank == 1:
        atexit.register(time.sleep, 600)
"""
# What is added to the verdict then.  On a loaded machine this may happen to any rank that fails.
LATE = "; it was still exiting when the launcher ended it"
UNTIL_TOLD = """
    wait_for("enough")
    step(2)
"""


def find_page(process: subprocess.Popen[str]) -> str:
    """The address that is said once; nothing else may come before it."""
    assert process.stderr
    said = process.stderr.readline()
    match = re.fullmatch(r"undertow: live view at (http://127\.0\.0\.1:\d+/) \(from elsewhere: ssh -L .*\)\n", said)
    assert match, said
    return match[1]


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=HANG_S) as answer:
        return str(answer.read().decode())


def wait_for_state(page: str, condition: Callable[[Any], bool]) -> Any:
    deadline_s = time.monotonic() + HANG_S
    while not condition(state := json.loads(fetch(page + "state.json"))):
        assert time.monotonic() < deadline_s, state
        time.sleep(0.02)
    return state


class Terminal:
    """A window of this size with the command in it."""

    def __init__(
        self, cli: Cli, *arguments: object, columns: int = 100, lines: int = 24, kind: str = "xterm-256color"
    ) -> None:
        self._reader, writer = os.openpty()
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.seen = b""
        self._set_size(columns, lines)
        cli.environment["TERM"] = kind
        self.process = cli.start("run", *arguments, stdin=writer, stdout=writer, stderr=writer)
        os.close(writer)

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        self._set_size(columns, lines)

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def wait_until(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """The first rows that fulfil it."""
        deadline_s = time.monotonic() + HANG_S
        while not condition(self.rows()):
            assert time.monotonic() < deadline_s, self.rows()
            assert self._read(), "\n".join(self.rows())
        return self.rows()

    def finish(self) -> tuple[int, list[str]]:
        """The exit code, and what is left on the screen."""
        while self._read():
            pass
        os.close(self._reader)
        return self.process.wait(HANG_S), self.rows()

    def _read(self) -> bool:
        if not select.select([self._reader], [], [], HANG_S)[0]:
            return False
        try:
            data = os.read(self._reader, 1 << 16)
        except OSError:  # all writers have gone
            return False
        self.seen += data
        self._stream.feed(data)
        return True

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._reader, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
