"""Workers that are not always equally fast.

In: a seed.  Out: how many times longer than usual a worker computes in a step; the same for the same seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from undertow import bounds


@dataclass(frozen=True, kw_only=True)
class Noise:
    jitter: float = 0.0  # the standard deviation of a step's time, as a fraction of it
    straggler_share: float = 0.0  # how likely a worker is to straggle in a step
    straggler_factor: float = 2.0  # how many times longer it then takes
    seed: int = 0

    def __post_init__(self) -> None:
        bounds.JITTER.check("jitter", self.jitter)
        bounds.SHARE.check("share of stragglers", self.straggler_share)
        bounds.STRAGGLE.check("straggler factor", self.straggler_factor)

    @property
    def is_silent(self) -> bool:
        return not self.jitter and not self.straggler_share

    def pace(self, rank: int, step: int) -> float:
        """A step is never much shorter than usual, and now and then much longer: so its logarithm is normal."""
        if self.is_silent:
            return 1.0
        pick = random.Random(f"{self.seed}/{rank}/{step}")
        factor = pick.lognormvariate(0.0, self.jitter)
        return factor * self.straggler_factor if pick.random() < self.straggler_share else factor
