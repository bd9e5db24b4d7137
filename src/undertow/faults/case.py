"""One run: what its seed is, where its luck comes from, and where its story is told."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from undertow.faults.story import Story


@dataclass(frozen=True)
class Case:
    """`dice` are a scenario's own: a cluster has others, made of the same seed, so that a run is the same with and
    without a fault up to the event of that fault."""

    seed: int
    dice: random.Random
    story: Story = field(default_factory=Story)
