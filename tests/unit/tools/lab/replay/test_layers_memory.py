"""Memory for gradients: only the borrower holds a block, and a returned block keeps its contents."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest
import torch

from undertow.tools.lab.replay.layers import GradientMemory
from undertow.torch.pending.memory_owners import count_storage_uses
from undertow.torch.slots.tensors import is_plain

FIRST_VALUE = 0.25


def test_what_is_lent_is_a_tensor_of_that_shape_with_numbers_in_it() -> None:
    lent = GradientMemory((3, 5), FIRST_VALUE).lend()
    assert (lent.shape, lent.dtype) == ((3, 5), torch.float32)
    assert is_plain(lent)
    assert torch.equal(lent, torch.full((3, 5), FIRST_VALUE))


def test_nobody_shares_what_is_lent() -> None:
    memory = GradientMemory((4,), FIRST_VALUE)
    for _ in range(3):
        lent = memory.lend()
        assert count_storage_uses(lent) == 1
        view = lent[1:]
        assert count_storage_uses(lent) > 1  # the check detects another holder
        del lent, view


def test_a_block_that_came_back_is_lent_again() -> None:
    memory = GradientMemory((8,), FIRST_VALUE)
    places = set()
    for _ in range(5):
        lent = memory.lend()
        places.add(lent.data_ptr())
        del lent
    assert len(places) == 1


def test_there_is_a_second_block_only_while_the_first_is_lent() -> None:
    memory = GradientMemory((8,), FIRST_VALUE)
    first = memory.lend()
    second = memory.lend()
    places = {first.data_ptr(), second.data_ptr()}
    assert len(places) == 2
    del first
    for _ in range(3):
        again = memory.lend()
        assert again.data_ptr() in places - {second.data_ptr()}
        del again


@pytest.mark.parametrize(
    "hold",
    [
        lambda lent: lent[2:],
        lambda lent: lent.detach(),
        lambda lent: lent.view(2, 4).t(),
        lambda lent: lent.numpy(),
        lambda lent: lent.untyped_storage(),
        lambda lent: memoryview(lent.numpy()),
    ],
    ids=["slice", "detached", "transposed", "array", "storage", "buffer"],
)
def test_a_view_keeps_a_block_from_being_lent_again(hold: Callable[[torch.Tensor], object]) -> None:
    memory = GradientMemory((8,), FIRST_VALUE)
    lent = memory.lend()
    place = lent.data_ptr()
    held = hold(lent)
    del lent
    other = memory.lend()
    assert other.data_ptr() != place
    del held
    gc.collect()
    assert memory.lend().data_ptr() == place


def test_values_survive_until_the_next_lending() -> None:
    memory = GradientMemory((2, 3), FIRST_VALUE)
    lent = memory.lend()
    lent.copy_(torch.arange(6.0).view(2, 3))
    del lent
    assert torch.equal(memory.lend(), torch.arange(6.0).view(2, 3))


def test_a_copy_lends_memory_of_its_own() -> None:
    memory = GradientMemory((4,), FIRST_VALUE)
    memory.lend().fill_(7)
    copied = copy.deepcopy(memory)
    other = copied.lend()
    assert torch.equal(other, torch.full((4,), FIRST_VALUE))
    other.fill_(3)
    lent = memory.lend()
    assert lent.data_ptr() != other.data_ptr()
    assert torch.equal(lent, torch.full((4,), 7.0))
