"""A group of two for tests of factors: the test says what its other worker hands over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.support.fake_group import FakeGroup
from tests.support.numpy_frontend import Linear, NumpySlot
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Array, Op
from undertow.engine.core.slicing import Chunking, Cut, Placement, Slice, cut
from undertow.engine.server.gathering import RankBytes
from undertow.sizing import Sizes
from undertow.sync.completion import Completion
from undertow.sync.factors import FactorsSyncer
from undertow.sync.factors_to_shard import FactorsToShardSyncer

HEIGHT, DEPTH, ROWS = 6, 4, 2


class FactorGroup(FakeGroup):
    """A group of two.  `theirs` holds the other worker's payloads by key, `rows` its rows."""

    def __init__(self) -> None:
        super().__init__(sizes=Sizes(fixed=1024))
        self.theirs: dict[int, RankBytes] = {}
        self.rows = np.zeros(0, np.float32)
        self.sent: list[Contribution] = []
        self.helpers = 0
        self.order: list[str] = []

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        self.sent += contributions
        for one in contributions:
            spec = self.slices[one.key].spec
            self.order.append(f"{spec.op.name} {spec.owner}")
            if spec.op is Op.GATHER:
                one.gathered = [RankBytes(one.source, one.present), self.theirs.get(one.key, RankBytes(None, 0))]
            elif one.source is not None:
                assert one.target is not None
                one.target[:] = one.source
            else:
                assert one.target is not None
                one.target[:], one.present = self.rows, 1
            one.on_result(one)

    def start_helper(self) -> None:
        self.helpers += 1


def make_slot(seed: int) -> NumpySlot:
    """Return the slot of a layer that has just computed its backward."""
    random = np.random.default_rng(seed)
    layer = Linear("layer", np.zeros((HEIGHT, DEPTH), np.float32))
    layer.hands_over_factors = True
    layer.forward(random.standard_normal((ROWS, DEPTH)).astype(np.float32))
    layer.backward(random.standard_normal((ROWS, HEIGHT)).astype(np.float32))
    return NumpySlot(layer, "weight")


def product(slot: NumpySlot) -> Array:
    assert slot.layer.factors is not None
    activations, deltas = slot.layer.factors
    return deltas.T @ activations


def learn(group: FactorGroup, slot: NumpySlot, way: Chunking) -> list[Slice]:
    slices = cut([slot.spec], Cut(0, 1024), op=Op.MEAN, placement=Placement(range(2)), chunkings={0: way})
    group.learn(slices)
    return slices


def run(syncer: FactorsSyncer | FactorsToShardSyncer) -> Completion:
    completion = Completion(syncer.answers, syncer.members)
    syncer.begin(completion, [3])
    syncer.send(0, None)
    return completion


def empty_slot() -> NumpySlot:
    slot = make_slot(1)
    slot.layer.factors = None
    return slot
