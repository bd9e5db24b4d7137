"""Syncers of factors, in a group of two whose other worker contributes what the test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

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
from undertow.sync.payload import split

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


def make_gathered(chunks: int = 1) -> tuple[FactorGroup, NumpySlot, FactorsSyncer]:
    group, slot = FactorGroup(), make_slot(1)
    slices = learn(group, slot, Chunking(chunks))
    return group, slot, FactorsSyncer(group, 0, slot, slices)


def share(group: FactorGroup, syncer: FactorsSyncer, theirs: NumpySlot) -> None:
    """Let the other worker contribute these factors."""
    payload = theirs.pack(theirs.take_factors())
    chunks = split(payload.array, len(syncer._keys))
    group.theirs = {key: RankBytes(chunk, payload.descriptor) for key, chunk in zip(syncer._keys, chunks, strict=True)}


def run(syncer: FactorsSyncer | FactorsToShardSyncer) -> Completion:
    completion = Completion(syncer.answers, syncer.members)
    syncer.begin(completion, [3])
    syncer.send(0, None)
    return completion


@pytest.mark.parametrize("chunks", [1, 3])
def test_the_mean_of_all_factors_becomes_the_gradient(chunks: int) -> None:
    group, slot, syncer = make_gathered(chunks)
    theirs = make_slot(2)
    expected = (product(slot) + product(theirs)) / 2
    share(group, syncer, theirs)
    assert run(syncer).is_done
    assert len(group.sent) == chunks
    assert {one.priority for one in group.sent} == {3}
    syncer.land(0)
    np.testing.assert_allclose(slot.gradient, expected, rtol=1e-6)
    assert len(group.released) == chunks  # the other worker's


def test_a_whole_gradient_is_sent_along_and_counted_except_in_the_first_pass() -> None:
    group, slot, syncer = make_gathered()
    for counted in (0, 1):
        slot.layer.factors = make_slot(1).layer.factors
        slot.layer.gradients["weight"] = np.ones((HEIGHT, DEPTH), np.float32)
        expected = (product(slot) + 1) / 2
        share(group, syncer, empty_slot())
        run(syncer)
        syncer.land(0)
        np.testing.assert_allclose(slot.gradient, expected, rtol=1e-6)
        assert syncer.wholes == counted


def empty_slot() -> NumpySlot:
    slot = make_slot(1)
    slot.layer.factors = None
    return slot


def test_without_a_gradient_on_any_rank_there_is_no_result() -> None:
    group, slot, syncer = make_gathered()
    slot.layer.factors = None
    share(group, syncer, empty_slot())
    run(syncer)
    syncer.land(0)
    assert slot.gradient is None


def test_results_are_sampled_on_request() -> None:
    digests = []
    for samples, seed in ((False, 2), (True, 2), (True, 2), (True, 3)):
        group, _, syncer = make_gathered()
        syncer.samples = samples
        share(group, syncer, make_slot(seed))
        run(syncer)
        syncer.land(0)
        digests.append(syncer.digest)
    assert digests[0] is None
    assert digests[1] == digests[2]
    assert digests[1] != digests[3]


def make_sharded() -> tuple[FactorGroup, NumpySlot, FactorsToShardSyncer]:
    group, slot = FactorGroup(), make_slot(1)
    slices = learn(group, slot, Chunking(1, True))
    return group, slot, FactorsToShardSyncer(group, 0, slot, slices)


def share_with_shard(group: FactorGroup, theirs: NumpySlot) -> None:
    """Let the other worker send its factors to shard 0, which is ours, and answer with its own rows."""
    factors = theirs.take_factors()
    rows = range(HEIGHT // 2)
    payloads = [
        theirs.pack(factors._replace(factors=factors.factors[:1], whole=None)),
        theirs.pack(theirs.split_rows(factors, rows)),
    ]
    keys = [key for key, item in group.slices.items() if item.spec.op is Op.GATHER and item.spec.owner == 0]
    group.theirs = {key: RankBytes(one.array, one.descriptor) for key, one in zip(keys, payloads, strict=True)}


def test_each_shard_computes_its_rows_which_together_form_the_gradient() -> None:
    group, slot, syncer = make_sharded()
    theirs = make_slot(2)
    expected = (product(slot) + product(theirs)) / 2
    group.rows = expected[HEIGHT // 2 :].reshape(-1)
    share_with_shard(group, theirs)
    assert run(syncer).is_done
    syncer.land(0)
    np.testing.assert_allclose(slot.gradient, expected, rtol=1e-6)
    assert group.helpers == 1
    assert len(group.released) == 2  # the other worker's two payloads


def test_rounds_of_other_shards_rows_are_joined_before_factors_are_sent() -> None:
    """A shard that has the factors of all workers answers without a request."""
    group, _, syncer = make_sharded()
    group.rows = np.zeros(HEIGHT // 2 * DEPTH, np.float32)
    run(syncer)
    assert group.order[0] == "MEAN 1"
    assert group.order[1:3] == ["GATHER 0"] * 2  # each worker starts with its own shard


def test_rows_of_a_whole_gradient_are_sent_along() -> None:
    group, slot, syncer = make_sharded()
    slot.layer.gradients["weight"] = np.arange(HEIGHT * DEPTH, dtype=np.float32).reshape(HEIGHT, DEPTH)
    expected = (product(slot) + np.array(slot.gradient)) / 2
    group.rows = expected[HEIGHT // 2 :].reshape(-1)
    share_with_shard(group, empty_slot())
    run(syncer)
    syncer.land(0)
    np.testing.assert_allclose(slot.gradient, expected, rtol=1e-6)
