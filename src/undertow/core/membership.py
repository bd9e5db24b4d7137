"""Who is in the group, and who is not any more.

In: signs of life, goodbyes and broken links, each with the time.
Out: a `Loss` with its reason in words, at most once: the first cause.
The clock is the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    rank: int
    host: str
    reason: str

    def __str__(self) -> str:
        return f"rank {self.rank} on host {self.host} was lost: {self.reason}"


class Membership:
    """The other workers of a group as one of them sees them."""

    def __init__(self, rank: int, hosts: list[str], *, silence_s: float, now: float) -> None:
        self.rank = rank
        self.hosts = hosts
        self.loss: Loss | None = None  # the first cause; never replaced
        self.departed: dict[int, str] = {}  # left in order, with what they said
        self._silence_s = silence_s
        self._heard_at = {peer: now for peer in range(len(hosts)) if peer != rank}
        self._ticked_at = now

    def heard(self, peer: int, now: float) -> None:
        self._heard_at[peer] = now

    def left(self, peer: int, reason: str) -> None:
        """A goodbye: no error by itself, but nothing can be asked of this peer any more."""
        self.departed.setdefault(peer, reason)

    def lose(self, peer: int, reason: str) -> Loss | None:
        """A peer is gone without goodbye.  Returns the loss if it is the first."""
        if peer in self.departed or self.loss is not None:
            return None
        self.loss = Loss(peer, self.hosts[peer], reason)
        return self.loss

    def tick(self, now: float) -> Loss | None:
        """Look for peers that have been silent for too long."""
        # If this very process did not run (stopped, or the host slept), nobody could be
        # heard: everyone gets the time back, or a resumed worker would blame all the others.
        missed_s = max(0.0, now - self._ticked_at - self._silence_s / 4)
        self._ticked_at = now
        for peer, heard_at in self._heard_at.items():
            self._heard_at[peer] = heard_at = heard_at + missed_s
            if now - heard_at > self._silence_s and peer not in self.departed:
                return self.lose(
                    peer, f"no sign of life for {now - heard_at:.1f} s (process stopped, host down or link cut)"
                )
        return None
