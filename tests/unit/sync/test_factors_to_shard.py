"""Factors to shards: each shard computes its rows, and all of them become the gradient."""

from __future__ import annotations

import numpy as np

from tests.support.factor_exchange import DEPTH, HEIGHT, FactorGroup, empty_slot, learn, make_slot, product, run
from tests.support.numpy_frontend import NumpySlot
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import Chunking
from undertow.engine.server.gathering import RankBytes
from undertow.sync.factors_to_shard import FactorsToShardSyncer


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
