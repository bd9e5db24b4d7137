"""A helper thread beside the engine thread and the training thread, and the count of work that other workers need.

In: long tasks, in the order in which to run them.  Out: nothing; each task reports its own errors.
A `ThreadPoolExecutor` would not do: Python ends it before the `atexit` handlers run, but other workers may need the
results of these tasks after the script has ended.
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
        """Start the thread once.  Call it before the script ends: since Python 3.12 no thread can start later."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="undertow-helper", daemon=True)
                self._thread.start()

    def submit(self, work: Work) -> None:
        """Run `work` after everything submitted before.  It must not raise."""
        self.start()
        self._queue.put(work)

    def stop(self) -> None:
        """End the thread after all submitted work.  Returns at once."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end, because native code that still runs when Python ends may crash the process."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # it refers to a model, which should be freed even if no more work comes


class OpenWork:
    """Count of unfinished tasks outside the exchange whose results other workers may need.  Thread-safe."""

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
    def is_done(self) -> bool:
        return not self._count
