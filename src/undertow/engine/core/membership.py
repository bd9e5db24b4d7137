"""The members of a group: which of them are alive, have left or are lost.

In: frames received, goodbyes and broken links, each with the time.
Out: a `Loss`, at most once: the first cause.
The caller passes the time in.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from undertow.decoding import Rank, Seconds

ExitCode = Annotated[int, msgspec.Meta(ge=1, le=255)]  # exit code of a failed process


class Loss(msgspec.Struct, frozen=True):
    """The loss of one worker, as the ranks of a group report it to each other."""

    rank: Rank
    seen_by: Rank  # the rank that noticed the loss first
    reason: str = ""  # empty if the worker was silent
    silent_s: Seconds | None = None  # duration of the silence
    exit_code: ExitCode | None = None  # exit code that the worker's process will have, if its script failed


class Membership:
    """One process's view of the other processes of its group."""

    def __init__(self, rank: int, processes: int, *, silence_s: float, now: float) -> None:
        self.rank = rank
        self.loss: Loss | None = None  # the first cause; never replaced
        self.departed: dict[int, None] = {}  # peers that said goodbye, in this order
        self._silence_s = silence_s
        self._alive_at = {peer: now for peer in range(processes) if peer != rank}
        self._ticked_at = now

    def note_alive(self, peer: int, now: float) -> None:
        self._alive_at[peer] = now

    def left(self, peer: int) -> None:
        """Note a goodbye, which is no error in itself: the peer only answers no more requests."""
        self.departed.setdefault(peer)

    def lose(self, loss: Loss) -> Loss | None:
        """Note a loss and return it; None if it is not the first, or if its rank has said goodbye."""
        if loss.rank in self.departed or self.loss is not None:
            return None
        self.loss = loss
        return loss

    def tick(self, now: float) -> Loss | None:
        """Return the loss of a peer that has been silent for too long, if it is the first."""
        # While this process did not run (it was stopped, or the host slept), it could receive nothing.  That time does
        # not count as silence; otherwise a resumed worker would blame all the others.
        missed_s = max(0.0, now - self._ticked_at - self._silence_s / 4)
        self._ticked_at = now
        for peer, alive_at in self._alive_at.items():
            self._alive_at[peer] = alive_at = alive_at + missed_s
            if now - alive_at > self._silence_s and peer not in self.departed:
                return self.lose(Loss(peer, self.rank, silent_s=now - alive_at))
        return None
