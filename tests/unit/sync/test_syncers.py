"""Syncers of dense gradients: what is sent when, from which memory, and where the mean is received."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.fake_group import FakeGroup
from tests.support.numpy_frontend import Linear, NumpySlot
from tests.support.slow_group import SlowGroup
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Array, Op
from undertow.engine.core.slicing import Slice
from undertow.sync.completion import Completion
from undertow.sync.slot import InPlace
from undertow.sync.syncers import DenseSyncer, FusedSyncer

SLICE_BYTES = 64


class HeldGroup(SlowGroup):
    """A slow group that keeps the function that tells whether the last contributions are ready."""

    def __init__(self) -> None:
        super().__init__(SLICE_BYTES)
        self.is_ready: Callable[[], bool] | None = None

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        super().contribute(contributions)
        self.is_ready = is_ready

    def answer_all(self, *, absent: bool = False) -> None:
        for one in self.pending:
            one.absent = absent
        self.deliver_all()


class CopiedSlot(NumpySlot):
    """A slot whose gradient is on a device and is copied slowly."""

    ready = False

    def expose(self, hint: Any) -> InPlace | None:
        return None

    def copy_out(self, segment: Array) -> Any:
        super().copy_out(segment)
        return lambda: self.ready


class SharedSlot(NumpySlot):
    """A slot whose gradient shares memory that backward still uses."""

    def expose(self, hint: Any) -> InPlace | None:
        found = super().expose(hint)
        return None if found is None else InPlace(found.array, False)


def make_slot(kind: type[NumpySlot] = NumpySlot, *, width: int = 12, name: str = "layer") -> NumpySlot:
    layer = Linear(name, np.zeros((3, width), np.float32))
    layer.gradients["weight"] = np.arange(3 * width, dtype=np.float32).reshape(3, width)
    return kind(layer, "weight")


def make_dense(group: FakeGroup, slot: NumpySlot) -> DenseSyncer:
    return DenseSyncer(group, 0, slot, group.register("", [slot.spec], op=Op.MEAN))


def run(syncer: DenseSyncer | FusedSyncer, priorities: Sequence[int] = (5,)) -> Completion:
    """Begin a pass and send all members."""
    completion = Completion(syncer.answers, syncer.members)
    syncer.begin(completion, priorities)
    for index in syncer.members:
        syncer.send(index, None)
    return completion


@pytest.mark.parametrize("kind", [NumpySlot, CopiedSlot, SharedSlot])
def test_a_gradient_is_sent_in_slices_and_becomes_the_mean(kind: type[NumpySlot]) -> None:
    group, slot = HeldGroup(), make_slot(kind)
    expected = np.array(slot.gradient) * 2
    syncer = make_dense(group, slot)
    completion = run(syncer)
    assert syncer.answers == len(group.pending) == 3
    assert {one.priority for one in group.pending} == {5}
    assert not completion.is_done
    group.answer_all()
    assert completion.is_done
    syncer.land(0)
    np.testing.assert_array_equal(slot.gradient, expected)


def test_a_gradient_in_host_memory_is_sent_and_received_in_place() -> None:
    group, slot = HeldGroup(), make_slot()
    syncer = make_dense(group, slot)
    run(syncer)
    for one in group.pending:
        assert one.source is not None
        assert np.shares_memory(one.source, slot.gradient)
        assert one.target is not None
        assert np.shares_memory(one.source, one.target)
    assert syncer.uses_memory_of(0)


def test_nothing_is_received_where_backward_still_reads() -> None:
    group, slot = HeldGroup(), make_slot(SharedSlot)
    before = np.array(slot.gradient)
    syncer = make_dense(group, slot)
    run(syncer)
    assert np.shares_memory(group.pending[0].source, slot.gradient)
    group.answer_all()
    np.testing.assert_array_equal(slot.gradient, before)
    assert syncer.uses_memory_of(0)


def test_a_copy_that_is_not_ready_holds_its_contribution_back() -> None:
    group, slot = HeldGroup(), make_slot(CopiedSlot)
    syncer = make_dense(group, slot)
    run(syncer)
    assert group.is_ready is not None
    assert not group.is_ready()
    slot.ready = True  # type: ignore[attr-defined]
    assert group.is_ready()
    assert not syncer.uses_memory_of(0)


def test_without_a_gradient_nothing_is_sent_and_without_any_nothing_lands() -> None:
    group, slot = HeldGroup(), make_slot()
    slot.layer.gradients["weight"] = None
    syncer = make_dense(group, slot)
    run(syncer)
    assert [(one.source, one.present) for one in group.pending] == [(None, 0)] * 3
    group.answer_all()
    syncer.land(0)
    assert slot.gradient is None


def test_the_mean_of_other_ranks_lands_without_an_own_gradient() -> None:
    group, slot = HeldGroup(), make_slot()
    slot.layer.gradients["weight"] = None
    syncer = make_dense(group, slot)
    completion = run(syncer)
    for one in group.pending:
        assert one.target is not None
        one.target[:] = 7
        one.present = 1
        one.on_result(one)
    assert completion.is_done
    syncer.land(0)
    np.testing.assert_array_equal(slot.gradient, np.full((3, 12), 7, np.float32))


def test_an_absent_worker_is_reported() -> None:
    group = HeldGroup()
    completion = run(make_dense(group, make_slot()))
    group.answer_all(absent=True)
    assert completion.absent


def make_fused(group: FakeGroup, slots: Sequence[NumpySlot]) -> FusedSyncer:
    slices: list[Slice] = group.register("", [slot.spec for slot in slots], op=Op.MEAN)
    assert len(slices) == 1
    return FusedSyncer(group, slices[0], slots)


def make_tiny() -> list[NumpySlot]:
    slots = [make_slot(width=1, name=name) for name in "ab"]
    for slot in slots:
        slot.layer.bias = np.zeros(1, np.float32)
        slot.layer.gradients["bias"] = np.ones(1, np.float32)
    return [NumpySlot(slot.layer, "bias") for slot in slots]


def test_tiny_gradients_are_sent_together_with_the_last_of_them() -> None:
    group, slots = HeldGroup(), make_tiny()
    syncer = make_fused(group, slots)
    completion = Completion(syncer.answers, syncer.members)
    syncer.begin(completion, [9, 4])
    syncer.send(1, None)
    assert group.pending == []
    syncer.send(0, None)
    assert [one.priority for one in group.pending] == [4]
    assert group.pending[0].present == 0b11
    group.answer_all()
    for index, slot in enumerate(slots):
        syncer.land(index)
        np.testing.assert_array_equal(slot.gradient, [2.0])


def test_a_fused_slice_marks_which_tensors_have_a_gradient() -> None:
    group, slots = HeldGroup(), make_tiny()
    slots[0].layer.gradients["bias"] = None
    syncer = make_fused(group, slots)
    run(syncer, [0, 0])
    assert group.pending[0].present == 0b10
    group.answer_all()
    for index in range(2):
        syncer.land(index)
    assert slots[0].gradient is None
    np.testing.assert_array_equal(slots[1].gradient, [2.0])


def test_a_syncer_is_reused_in_every_pass() -> None:
    group, slot = HeldGroup(), make_slot()
    syncer = make_dense(group, slot)
    for _ in range(3):
        before = np.array(slot.gradient)
        run(syncer)
        group.answer_all()
        syncer.land(0)
        np.testing.assert_array_equal(slot.gradient, before * 2)
