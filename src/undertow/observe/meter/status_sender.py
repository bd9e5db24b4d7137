"""Sends the status of a worker about once per second.

In: trace events from the event pump.  Out: status reports, to the launcher of this host and, through the group, to the
launcher of rank 0.  Nothing here may delay training or make it fail: a report that cannot be sent at once is dropped.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from undertow.observe.meter.status_report import EVERY_S, encode
from undertow.observe.meter.step_meter import StepMeter
from undertow.tracing.events import TraceEvent
from undertow.tracing.recorder import Recorder


def open_sender(path: str, recorder: Recorder, *, rank: int, local_rank: int) -> StatusSender:
    """Return a sender for this rank; the launcher of its host listens at `path`."""
    # The lowest ranks are on the first host: only there, a rank equals its local rank.
    return StatusSender(recorder, StatusSocket(path), rank=rank, is_beside_first=rank == local_rank)


class StatusGroup(Protocol):
    """A group, as the channel for status reports to rank 0."""

    size: int

    def send_to_first(self, body: bytes) -> None:
        """Send a report to rank 0; do nothing on rank 0."""

    def on_side_message(self, call: Callable[[bytes], None]) -> None: ...


class StatusSocket:
    """A datagram socket to a launcher that may be busy or gone.  Any thread may send."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, body: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendto(body, self._path)

    def close(self) -> None:
        self._socket.close()


class StatusSender:
    """An event reader that sends the readings of its step meter."""

    title = "the live view of this worker"

    def __init__(
        self,
        recorder: Recorder,
        status_socket: StatusSocket,
        *,
        rank: int,
        is_beside_first: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recorder, self._socket, self._clock = recorder, status_socket, clock
        self._meter = StepMeter(rank=rank, host=socket.gethostname(), now_s=clock())
        self._is_beside_first = is_beside_first  # whether rank 0 has the same launcher
        self._group: StatusGroup | None = None
        self._due_s = clock()
        self._lock = threading.Lock()

    def announce_end(self) -> None:
        """Report the end through the group, which is about to close."""
        with self._lock:
            self._send(self._clock(), has_ended=True)
            self._group = None

    def use_group(self, group: StatusGroup) -> None:
        """Send reports through this group as well, if it is larger than the one in use."""
        with self._lock:
            if self._group is None or group.size > self._group.size:
                self._group = group
        group.on_side_message(self._socket.send)

    def take(self, events: Sequence[TraceEvent]) -> None:
        with self._lock:
            self._meter.take(events)
            now_s = self._clock()
            if now_s >= self._due_s:
                self._due_s = now_s + EVERY_S
                self._send(now_s)

    def close(self) -> None:
        with self._lock:
            self._send(self._clock(), has_ended=True)
            self._socket.close()

    def _send(self, now_s: float, *, has_ended: bool = False) -> None:
        body = encode(self._meter.read(now_s, standstill=self._recorder.standstill, has_ended=has_ended))
        self._socket.send(body)
        if self._group is not None and not self._is_beside_first:
            self._group.send_to_first(body)
