"""Factors to everybody: the mean of what all workers hand over becomes the gradient."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.factor_exchange import DEPTH, HEIGHT, FactorGroup, empty_slot, learn, make_slot, product, run
from tests.support.numpy_frontend import NumpySlot
from undertow.engine.core.slicing import Chunking
from undertow.engine.server.gathering import RankBytes
from undertow.sync.factors import FactorsSyncer
from undertow.sync.payload import split


def make_gathered(chunks: int = 1) -> tuple[FactorGroup, NumpySlot, FactorsSyncer]:
    group, slot = FactorGroup(), make_slot(1)
    slices = learn(group, slot, Chunking(chunks))
    return group, slot, FactorsSyncer(group, 0, slot, slices)


def share(group: FactorGroup, syncer: FactorsSyncer, theirs: NumpySlot) -> None:
    """Let the other worker contribute these factors."""
    payload = theirs.pack(theirs.take_factors())
    chunks = split(payload.array, len(syncer._keys))
    group.theirs = {key: RankBytes(chunk, payload.descriptor) for key, chunk in zip(syncer._keys, chunks, strict=True)}


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
