"""The members of a group, and which of them are gone.

In: signs of life, goodbyes and broken links, each with the time.
Out: a `Loss`, at most once: the first cause.
The clock is the caller's.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from undertow.decoding import Rank, Seconds

ExitCode = Annotated[int, msgspec.Meta(ge=1, le=255)]  # of a process that has failed


class Loss(msgspec.Struct, frozen=True):
    """The loss of one worker, as ranks of the group tell it each other."""

    rank: Rank
    seen_by: Rank  # the rank that noticed it first
    reason: str = ""  # empty if it was silent
    silent_s: Seconds | None = None  # for how long
    exit_code: ExitCode | None = None  # the one its process will have, if its script failed


class Membership:
    """Other processes of a group as one of them sees them."""

    def __init__(self, rank: int, processes: int, *, silence_s: float, now: float) -> None:
        self.rank = rank
        self.loss: Loss | None = None  # the first cause; never replaced
        self.departed: dict[int, None] = {}  # said goodbye, in this order
        self._silence_s = silence_s
        self._heard_at = {peer: now for peer in range(processes) if peer != rank}
        self._ticked_at = now

    def note_alive(self, peer: int, now: float) -> None:
        self._heard_at[peer] = now

    def left(self, peer: int) -> None:
        """Take a goodbye: no error by itself, but nothing can be asked of this peer any more."""
        self.departed.setdefault(peer)

    def lose(self, loss: Loss) -> Loss | None:
        """Take the loss of a peer that has not said goodbye; return it if it is the first."""
        if loss.rank in self.departed or self.loss is not None:
            return None
        self.loss = loss
        return loss

    def tick(self, now: float) -> Loss | None:
        """Look for peers that have been silent for too long."""
        # If this very process did not run (stopped, or the host slept), nothing could be heard: all peers get the
        # time back, or a resumed worker would blame all the others.
        missed_s = max(0.0, now - self._ticked_at - self._silence_s / 4)
        self._ticked_at = now
        for peer, heard_at in self._heard_at.items():
            self._heard_at[peer] = heard_at = heard_at + missed_s
            if now - heard_at > self._silence_s and peer not in self.departed:
                return self.lose(Loss(peer, self.rank, silent_s=now - heard_at))
        return None
