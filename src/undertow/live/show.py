"""What the launcher shows of a running job: collects on the board, and has each view show it in a thread of its own.

In: wishes of the user; pulses, lines and endings.  Out: a terminal, a log, a page.
No view can hold up another one, the workers, or the end of the job: one that hangs is left behind.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from undertow.launch.failure import Ending, describe_code
from undertow.launch.output import Audible
from undertow.launch.speech import notify
from undertow.launch.worker import Post
from undertow.live import plain
from undertow.live.board import DONE, Board, Picture
from undertow.live.mailbox import Mailbox
from undertow.live.pulse import Pulse
from undertow.live.screen import Screen, find_terminal
from undertow.live.web import FAREWELL_S, Gallery, Server

HISTORY_EVERY_S = 1.0
# How long a terminal or log that nobody reads may hold up the end of the job.
LAST_WORDS_S = 1.0
# A view that is merely slow, because the machine is, is waited for this many times as long.
SLOWEST_VIEW = 10


class View(Protocol):
    every_s: float

    def start(self) -> None: ...

    def show(self, picture: Picture) -> None: ...

    def finish(self, picture: Picture) -> None:
        """This is the last one."""

    def is_stuck(self) -> bool:
        """Whether nothing can be written at the moment: `finish` would hang."""

    def release(self) -> None:
        """From the launcher's own thread, when `finish` has ended or hangs."""


class Log:
    """A view for where there is no terminal."""

    every_s = 0.5

    def __init__(self, tell: Callable[[str], None] = notify, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._due_s = 0.0
        self._alarms: set[int] = set()
        self._said = ""

    def start(self) -> None:
        self._due_s = self._clock() + plain.EVERY_S

    def show(self, picture: Picture) -> None:
        for alarm in plain.find_alarms(picture, self._alarms):
            self._tell(alarm)
        if self._clock() >= self._due_s:
            self._due_s += plain.EVERY_S
            self._describe(picture)

    def finish(self, picture: Picture) -> None:
        if picture.heard:
            self._describe(picture)

    def is_stuck(self) -> bool:
        return False  # `notify` gives up by itself

    def release(self) -> None:
        pass

    def _describe(self, picture: Picture) -> None:
        words = plain.describe(picture)
        if words != self._said:  # the end may come right after a line
            self._tell(words)
        self._said = words


class Web:
    """A view in browsers."""

    every_s = 1.0

    def __init__(self, port: int, picture: Picture) -> None:
        self._gallery = Gallery(picture)
        self._server = Server(port, self._gallery)
        self.port = self._server.server_port

    def start(self) -> None:
        self._server.start()

    def show(self, picture: Picture) -> None:
        self._gallery.hang(picture)

    def finish(self, picture: Picture) -> None:
        self._gallery.hang(picture, is_last=True)
        self._gallery.wait_for_viewers(FAREWELL_S)

    def is_stuck(self) -> bool:
        return False  # each browser has a thread of its own

    def release(self) -> None:
        self._server.close()


class Show:
    """`start` when the workers are about to be started, `finish` when all have ended.

    Threads begin with `start`: the lab forks before it.
    """

    def __init__(self, board: Board, views: Sequence[View], *, audible: Audible | None) -> None:
        self.audible = audible  # whose output is shown beside it; None: as without
        self._board, self._lock = board, threading.Lock()
        self._views = views
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._endings: Sequence[Ending] = ()
        self._noted_s = 0.0
        self._mailbox = Mailbox(self.hear)

    @property
    def address(self) -> str:
        """Where pulses go."""
        return str(self._mailbox.path)

    @property
    def folder(self) -> Path:
        """The temporary folder that is there from `start` to `collect`."""
        return self._mailbox.folder

    def collect(self) -> None:
        """All workers have ended: hear what they have said so far, and listen no more."""
        self._mailbox.close()

    def hear(self, pulse: Pulse) -> None:
        with self._lock:
            self._board.hear(pulse, time.monotonic())

    def listen(self, stream: int, data: bytes) -> None:
        """Rank 0 has written this."""
        with self._lock:
            self._board.lines.feed(stream, data)

    def start(self, posts: Sequence[Post], endings: Sequence[Ending]) -> None:
        """For these workers; `endings` grows while they end."""
        world_size = int(posts[0].environment["WORLD_SIZE"])
        self._board.expect({post.rank: post.host for post in posts}, world_size)
        self._endings = endings
        self._mailbox.start()
        for view in self._views:
            view.start()
            self._threads.append(threading.Thread(target=self._run, args=(view,), name="undertow-view", daemon=True))
            self._threads[-1].start()

    def finish(self, verdict: str) -> None:
        """Show how it ended, and give the terminal back.  A second call does nothing."""
        if self._ending.is_set():
            return
        self.collect()  # first: the workers' last words are in it
        with self._lock:
            self._board.conclude(verdict)
        self._ending.set()
        for view, thread in zip(self._views, self._threads, strict=False):  # no threads before `start`
            _wait_for(view, thread)
        for view in self._views:
            view.release()

    def _run(self, view: View) -> None:
        try:
            while not self._ending.wait(view.every_s):
                view.show(self._look())
        except Exception as error:  # a defect of ours: no reason to leave the terminal as it is, or to end the job
            notify(f"the live view ends here, the job goes on: {type(error).__name__}: {error}")
        finally:
            view.finish(self._look())

    def _look(self) -> Picture:
        now_s = time.monotonic()
        with self._lock:
            for ending in tuple(self._endings):
                self._board.end(ending.rank, describe_code(ending.code) if ending.code else DONE)
            if now_s >= self._noted_s + HISTORY_EVERY_S:
                self._noted_s = now_s
                self._board.note_history()
            return self._board.look(now_s)


def _wait_for(view: View, thread: threading.Thread) -> None:
    """Return when the view has ended or hangs.  A frame drawn later would cover the launcher's last words."""
    for _ in range(SLOWEST_VIEW):
        thread.join(LAST_WORDS_S + FAREWELL_S)
        if not thread.is_alive() or view.is_stuck():
            return


@contextmanager
def open_show(script: str, *, live: bool, port: int | None) -> Iterator[Show]:
    """Raises `ConfigError` if the port cannot be had."""
    board = Board(script, now_s=time.monotonic())
    views: list[View] = []
    fd = find_terminal(os.environ) if live else None
    if port is not None:
        web = Web(port, board.look(time.monotonic()))
        views.append(web)
        notify(_describe_address(web.port))
    if live:
        views.append(Log() if fd is None else Screen(fd))
    audible = None if not live else Audible.FIRST if fd is None else Audible.BESIDE
    show = Show(board, views, audible=audible)
    try:
        yield show
    finally:
        show.finish("stopped")


def _describe_address(port: int) -> str:
    here = f"http://127.0.0.1:{port}/"
    return f"live view at {here} (from elsewhere: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()})"
