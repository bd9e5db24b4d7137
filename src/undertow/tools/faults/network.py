"""Network in memory whose links can break, lose frames and damage them.

Frames of one link arrive in order and once, as every transport guarantees; a broken link delivers the first few that
were in flight and loses the others.  Frames that no correct worker sends come in through `inject`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from undertow.engine.wire.memory import MemoryNetwork
from undertow.tools.virtual.world import Clock

Link = tuple[int, int]  # sender, receiver
Sent = tuple[int, int, bytes, bytes | None]  # sender, receiver, header, body


class FaultyNetwork(MemoryNetwork):
    """Memory network with faults, which knows when each frame was sent."""

    def __init__(self, size: int, clock: Clock) -> None:
        super().__init__(size)
        self.record: list[Sent] | None = None  # if wanted, a copy of every frame
        self._clock = clock
        self._sent_at_s: dict[Link, deque[float]] = {link: deque() for link in self._links}

    def put(self, sender: int, receiver: int, item: Any) -> None:
        if self.record is not None and not isinstance(item, str):
            header, body = item
            self.record.append((sender, receiver, header, None if body is None else bytes(memoryview(body).cast("B"))))
        self._put(sender, receiver, item)

    def inject(self, sent: Sent) -> bool:
        """Send a frame in the name of a worker, and return whether its receiver is connected."""
        sender, receiver, header, body = sent
        is_connected = self.transports[receiver].is_connected(sender)
        self._put(sender, receiver, (header, body))
        return is_connected

    def _put(self, sender: int, receiver: int, item: Any) -> None:
        in_flight = self._links[sender, receiver]
        count = len(in_flight)
        super().put(sender, receiver, item)
        if len(in_flight) > count:
            self._sent_at_s[sender, receiver].append(self._clock.now_s)

    def deliver(self, sender: int, receiver: int) -> Any:
        self._sent_at_s[sender, receiver].popleft()
        return super().deliver(sender, receiver)

    def forget(self, sender: int, receiver: int) -> None:
        self._sent_at_s[sender, receiver].clear()
        super().forget(sender, receiver)

    def waiting_since_s(self, link: Link) -> float:
        """Return when the oldest frame on this link was sent; there must be one."""
        return self._sent_at_s[link][0]

    def next_body(self, link: Link) -> Any:
        """Return the body of the frame that is delivered next, if it has one."""
        item = self._links[link][0]
        return None if isinstance(item, str) else item[1]

    def frames_on(self, link: Link) -> int:
        return len(self._links[link])

    def links_with_sent_frames(self) -> list[Link]:
        """Return the links with frames in flight, and not only their end."""
        return [link for link, in_flight in self._links.items() if any(map(_is_frame, in_flight))]

    def damage(self, link: Link, dice: random.Random) -> None:
        """Flip a bit of the header or the body of one of the frames in flight; there must be one."""
        in_flight = self._links[link]
        index = dice.choice([index for index, item in enumerate(in_flight) if _is_frame(item)])
        frame = in_flight[index]
        assert not isinstance(frame, str)
        header, body = frame
        if body is None or memoryview(body).nbytes == 0 or dice.random() < 0.3:
            in_flight[index] = _flip_a_bit(header, dice), body
        else:
            in_flight[index] = header, _flip_a_bit(memoryview(body).cast("B"), dice)

    def lose_tail(self, link: Link, kept: int) -> None:
        """Lose all frames in flight but the first `kept`."""
        while len(self._links[link]) > kept:
            self._links[link].pop()
            self._sent_at_s[link].pop()

    def end_link(self, link: Link, kept: int, reason: str) -> None:
        """Break the link in this direction: its receiver gets the first `kept` frames, then the end of the link."""
        self.lose_tail(link, kept)
        self.put(*link, reason)


def _is_frame(item: Any) -> bool:
    return not isinstance(item, str)


def _flip_a_bit(data: bytes | memoryview, dice: random.Random) -> bytes:
    damaged = bytearray(data)
    damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
    return bytes(damaged)


def draw_prefix(dice: random.Random) -> Callable[[int], int]:
    """Return a function that draws how many of the frames in flight still arrive."""
    return lambda frames: dice.choice([0, frames, dice.randint(0, frames)])
