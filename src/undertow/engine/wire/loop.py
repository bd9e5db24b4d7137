"""The event loop of the engine thread, and of servers with a thread: asleep unless something happens.

In: ready sockets, calls posted by other threads, a tick every second.
Out: callbacks, all in this thread, so their data needs no locks.
The engine thread, of which a process has one, starts with the first group and ends with the last.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

log = logging.getLogger("undertow")

TICK_S = 1.0
# A system call that does not release the GIL; only for descriptors that never block.
_write = ctypes.PyDLL(None).write


class Loop:
    """Event loop, with the thread that runs it."""

    def __init__(self, name: str = "engine") -> None:
        self._name = name
        self._selector = selectors.DefaultSelector()
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._drain_wakes)
        self._asleep = False
        self._timers: list[tuple[float, int, Callable[[], None]]] = []  # never empty: contains the tick
        self._sequence = itertools.count()
        self._tickers: list[Callable[[float], None]] = []
        self._failure_handlers: list[Callable[[Exception], None]] = []
        self._running = True
        self._thread = threading.Thread(target=self._run, name=f"undertow-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        """Run `call` in the loop's thread, soon and in order.  Can be called from any thread."""
        self._posted.append((call, arguments))
        # A wake-up costs a system call and is needed only if the thread sleeps.  The thread sets the flag before it
        # checks the queue for the last time, so no call is missed.
        if self._asleep:
            self._wake()

    def stop(self) -> None:
        """End the thread.  To be called from another thread."""
        self.post(self.end)
        self.join(timeout_s=5)

    def end(self) -> None:
        """End the thread after all posted calls.  To be called in the thread."""
        self._running = False

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the thread has ended; one that was never started will not run any more."""
        if self._thread.ident is None:
            self.close()
        else:
            self._thread.join(timeout_s)

    def watch(self, sock: socket.socket, events: int, call: Callable[[int], None]) -> None:
        self._selector.register(sock, events, call)

    def rewatch(self, sock: socket.socket, events: int, call: Callable[[int], None]) -> None:
        self._selector.modify(sock, events, call)

    def unwatch(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)

    def every_tick(self, call: Callable[[float], None]) -> None:
        self._tickers.append(call)

    def no_tick(self, call: Callable[[float], None]) -> None:
        self._tickers.remove(call)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Run `call` once after this delay.  To be called in the loop's thread only."""
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._sequence), call))

    def on_failure(self, call: Callable[[Exception], None]) -> None:
        """Run `call` if the thread ends because of a defect in undertow."""
        self._failure_handlers.append(call)

    def no_failure(self, call: Callable[[Exception], None]) -> None:
        self._failure_handlers.remove(call)

    def _run(self) -> None:
        self.later(TICK_S, self._tick)
        try:
            while self._running:
                self._turn()
        except Exception as error:
            log.exception("the %s thread failed", self._name)
            for call in self._failure_handlers:
                call(error)
        self.close()

    def _turn(self) -> None:
        self._asleep = True
        timeout = 0.0 if self._posted else max(0.0, self._timers[0][0] - time.monotonic())
        ready = self._selector.select(timeout)
        self._asleep = False
        for key, events in ready:
            key.data(events)
        while self._posted:
            call, arguments = self._posted.popleft()
            call(*arguments)
        while self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _tick(self) -> None:
        self.later(TICK_S, self._tick)
        for ticker in tuple(self._tickers):
            ticker(time.monotonic())

    def _wake(self) -> None:
        # `send` would release the GIL: the engine thread would take it at once, and the training thread, in the middle
        # of its backward pass, would have to wait.  Errors do not matter: if the socket is full, a wake-up is already
        # under way; if it is closed, no thread is asleep.
        _write(self._wake_in.fileno(), b"\0", 1)

    def _drain_wakes(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_out.recv(4096)

    def close(self) -> None:
        """Close the descriptors: the thread has ended, or does not run in this forked child."""
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()
