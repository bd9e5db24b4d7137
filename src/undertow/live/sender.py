"""The worker's side: reads the gauge about once per second and sends what it shows.

In: notes, from the scribe.  Out: pulses, to the launcher of this host and, through the group, to that of rank 0.
Nothing here may hold up or fail the training: what cannot be sent at once is dropped.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from undertow.live.gauge import Gauge
from undertow.live.pulse import EVERY_S, encode
from undertow.trace.notes import Note
from undertow.trace.recorder import Recorder


def open_sender(path: str, recorder: Recorder, *, rank: int, local_rank: int) -> Sender:
    """For the worker of this rank, to the launcher that listens there."""
    # The first ranks are on the first host: whoever has the same number here and in all is there, too.
    return Sender(recorder, Letterbox(path), rank=rank, is_beside_first=rank == local_rank)


class Carrier(Protocol):
    """A group, as far as it concerns pulses."""

    size: int

    def send_pulse(self, body: bytes) -> None:
        """To its first rank; that one's own stays here."""

    def hear_pulses(self, hear: Callable[[bytes], None]) -> None: ...


class Letterbox:
    """Sends datagrams to a launcher that may be busy, or gone.  Any thread may."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, body: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendto(body, self._path)

    def close(self) -> None:
        self._socket.close()


class Sender:
    """A reader of the scribe's."""

    title = "the live view of this worker"

    def __init__(
        self,
        recorder: Recorder,
        letterbox: Letterbox,
        *,
        rank: int,
        is_beside_first: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recorder, self._letterbox, self._clock = recorder, letterbox, clock
        self._gauge = Gauge(rank=rank, host=socket.gethostname(), now_s=clock())
        self._is_beside_first = is_beside_first  # the launcher is that of rank 0
        self._carrier: Carrier | None = None
        self._due_s = clock()
        self._lock = threading.Lock()

    def part(self) -> None:
        """The groups are about to be left: say so through them while that is possible."""
        with self._lock:
            self._send(self._clock(), has_ended=True)
            self._carrier = None

    def travel_with(self, carrier: Carrier) -> None:
        """Pulses go through this group as well, if it has more ranks than the one before."""
        with self._lock:
            if self._carrier is None or carrier.size > self._carrier.size:
                self._carrier = carrier
        carrier.hear_pulses(self._letterbox.send)

    def take(self, notes: Sequence[Note]) -> None:
        with self._lock:
            self._gauge.take(notes)
            now_s = self._clock()
            if now_s >= self._due_s:
                self._due_s = now_s + EVERY_S
                self._send(now_s)

    def close(self) -> None:
        with self._lock:
            self._send(self._clock(), has_ended=True)
            self._letterbox.close()

    def _send(self, now_s: float, *, has_ended: bool = False) -> None:
        body = encode(self._gauge.read(now_s, standstill=self._recorder.standstill, has_ended=has_ended))
        self._letterbox.send(body)
        if self._carrier is not None and not self._is_beside_first:
            self._carrier.send_pulse(body)
