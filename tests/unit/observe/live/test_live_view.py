"""The end of a job: a slow view is waited for, and a view that hangs is abandoned."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from tests.support.live_samples import make_job_state
from undertow.launch.worker import WorkerSpec
from undertow.observe.live import live_view
from undertow.observe.live.displays import Screen
from undertow.observe.live.job_state import JobSnapshot
from undertow.observe.live.live_view import LiveView


class SlowView:
    """A view that draws its last frame only after `is_stuck` was called."""

    every_s = 0.001

    def __init__(self, *, hangs: bool) -> None:
        self.events: list[str] = []
        self.may_finish = threading.Event()
        self.has_finished = threading.Event()
        self._hangs = hangs

    def start(self) -> None:
        pass

    def show(self, snapshot: JobSnapshot) -> None:
        pass

    def finish(self, snapshot: JobSnapshot) -> None:
        self.may_finish.wait()
        self.events.append("finished")
        self.has_finished.set()

    def is_stuck(self) -> bool:
        self.events.append("asked")
        if not self._hangs:
            self.may_finish.set()
            self.has_finished.wait()
        return self._hangs

    def release(self) -> None:
        self.events.append("released")


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "LAST_FRAME_S", 0.0)
    monkeypatch.setattr(live_view, "LAST_SNAPSHOT_S", 0.01)


def run(view: SlowView) -> list[str]:
    show = LiveView(make_job_state(1), [view], visible=None)
    show.start([WorkerSpec(command=(), environment={"RANK": "0", "WORLD_SIZE": "1"}, host="a")], [])
    show.finish("done")
    return list(view.events)


def test_a_slow_view_ends_before_the_launcher_writes_again() -> None:
    events = run(SlowView(hangs=False))
    assert events[:2] == ["asked", "finished"]
    assert events[-1] == "released"


def test_a_view_that_hangs_is_abandoned() -> None:
    view = SlowView(hangs=True)
    assert run(view) == ["asked", "released"]
    view.may_finish.set()


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    reader, writer = os.openpty()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_a_screen_is_stuck_when_its_terminal_takes_nothing_more(terminal: tuple[int, int]) -> None:
    screen = Screen(terminal[1])
    assert not screen.is_stuck()
    os.set_blocking(terminal[1], False)

    def is_stuck_when_full() -> bool:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(terminal[1], bytes(4096))
        return screen.is_stuck()

    assert any(is_stuck_when_full() for _ in range(1000))  # the kernel may pass on what was written, and take more
    screen._file.close()
