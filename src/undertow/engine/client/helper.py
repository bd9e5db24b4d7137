"""A thread beside the engine and the training, and the count of work that other workers still need.

In: work that takes long, in the order in which it is to be done.  Out: nothing; the work itself reports errors.
The thread is a daemon of our own: Python ends every `ThreadPoolExecutor` before it runs the handlers of `atexit`,
and when a script ends, other workers may still need what is made here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], None]


class Helper:
    """Thread that runs work in order until it is stopped."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, once.  Before the script ends: from Python 3.12 on no thread starts after that."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="undertow-helper", daemon=True)
                self._thread.start()

    def submit(self, work: Work) -> None:
        """Run this after all that was submitted before.  It must not raise."""
        self.start()
        self._queue.put(work)

    def stop(self) -> None:
        """End the thread after the work that was submitted; returns at once."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread: native code that still runs when Python ends may crash it."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # it holds a model, which may be discarded before there is more work


class Owed:
    """Count of tasks outside of the exchange whose outcome other workers may still need.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def begin(self) -> None:
        with self._lock:
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1

    @property
    def is_nothing(self) -> bool:
        return not self._count
