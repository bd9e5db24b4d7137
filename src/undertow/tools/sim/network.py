"""Virtual network: links, and messages that share them.

In: a message from one worker to another.  Out: the time of its arrival.
A full-duplex link is two `Link`s, one for each direction.  The messages from one worker to another are a stream and
stay in order.  The streams of a host share its outgoing link fairly: they send grains of bytes in turn.  The grains
pass the links behind it in the order in which they left their hosts, without being stored in between.  There are no
packets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from undertow.tools.virtual.world import Clock

# Length of a stream's turn on its host's outgoing link.
GRAIN_S = 0.0005
FEW_BYTES = 1500  # one packet


class Link:
    """One direction of a link."""

    __slots__ = ("carried_bytes", "free_s", "rate", "seconds_per_byte")

    def __init__(self, bytes_per_s: float) -> None:
        self.rate = bytes_per_s
        self.seconds_per_byte = 1.0 / bytes_per_s
        self.free_s = 0.0
        self.carried_bytes = 0

    def carry(self, from_s: float, size_bytes: int) -> float:
        """Return when the last of these bytes has passed if the first one comes at `from_s`."""
        start_s = self.free_s if self.free_s > from_s else from_s
        self.free_s = start_s + size_bytes * self.seconds_per_byte
        self.carried_bytes += size_bytes
        return self.free_s


@dataclass(slots=True)
class Message:
    """Message in flight.  `arrive(time_s, item)` is called as soon as the arrival of its last byte is known."""

    stream: int
    left_bytes: int
    path: Sequence[Link]  # the links behind the first one
    arrive: Callable[[float, Any], None]
    item: Any


class Port:
    """Outgoing link of a host, shared by all streams of its workers."""

    def __init__(self, clock: Clock, link: Link, latency_s: float) -> None:
        self.link = link
        self._clock = clock
        self._latency_s = latency_s
        self._grain_bytes = max(1, int(GRAIN_S * link.rate))
        self._turns: deque[Message] = deque()  # the first message of each stream, in the order of their turns
        self._active: set[int] = set()  # the streams of `_turns`
        self._waiting: dict[int, deque[Message]] = {}  # further messages of each stream; no deque is empty
        self._is_due = False  # the clock has the next turn

    def lets_pass(self, stream: int, size_bytes: int) -> float | None:
        """Return when a few bytes arrive that need not queue, because a fair share of any link is enough for them.

        None if there are too many bytes, or if other messages of their stream go first.
        """
        if size_bytes > FEW_BYTES or stream in self._active:
            return None
        self.link.carried_bytes += size_bytes
        return self._clock.now_s + self._latency_s + size_bytes * self.link.seconds_per_byte

    def send(self, message: Message) -> None:
        stream = message.stream
        if stream in self._active:
            self._waiting.setdefault(stream, deque()).append(message)
            return
        self._active.add(stream)
        self._turns.append(message)
        if self._is_due:
            return
        if self.link.free_s <= self._clock.now_s:
            self._turn()
        else:
            self._is_due = True
            self._clock.at(self.link.free_s, self._turn)

    def _turn(self) -> None:
        """Send the next stream's grain."""
        message = self._turns.popleft()
        size_bytes = message.left_bytes
        is_last = size_bytes <= self._grain_bytes
        if not is_last:
            size_bytes = self._grain_bytes
            message.left_bytes -= size_bytes
        now_s, latency_s = self._clock.now_s, self._latency_s
        sent_s = self.link.carry(now_s, size_bytes)
        arrival_s = sent_s + latency_s
        for link in message.path:
            passed_s = link.carry(now_s + latency_s, size_bytes)
            if passed_s > arrival_s:
                arrival_s = passed_s
        if is_last:
            message.arrive(arrival_s, message.item)
            self._follow(message.stream)
        else:
            self._turns.append(message)
        self._is_due = bool(self._turns)
        if self._is_due:
            self._clock.at(sent_s, self._turn)

    def _follow(self, stream: int) -> None:
        """Queue the next message of a stream whose first one is sent."""
        waiting = self._waiting.get(stream)
        if waiting is None:
            self._active.discard(stream)
            return
        self._turns.append(waiting.popleft())
        if not waiting:
            del self._waiting[stream]
