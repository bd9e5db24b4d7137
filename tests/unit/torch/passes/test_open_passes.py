"""Passes that are open at the same time: which of them is late, and which end together."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Set as AbstractSet

import pytest

from undertow.torch.passes.open_passes import OpenPasses


class Owner:
    def __init__(self, *members: str) -> None:
        self.members: AbstractSet[str] = set(members)


@pytest.fixture
def passes() -> OpenPasses:
    return OpenPasses()


def test_passes_of_one_backward_end_together(passes: OpenPasses) -> None:
    first, second, elsewhere = Owner("a"), Owner("b"), Owner("c")
    assert not passes.add(first, 7)
    assert not passes.add(second, 7)
    assert not passes.add(elsewhere, 8)
    assert passes.find_together(first) == passes.find_together(second) == [first, second]
    assert passes.find_together(elsewhere) == [elsewhere]
    passes.remove(first)
    assert passes.find_together(second) == [second]


def test_the_second_pass_over_a_tensor_is_late_and_ends_alone(passes: OpenPasses) -> None:
    first, second, third = Owner("a", "b"), Owner("b", "c"), Owner("d")
    passes.add(first, 7)
    assert passes.add(second, 7)
    assert not passes.add(third, 7)
    assert passes.find_together(first) == [first, third]
    assert passes.find_together(second) == [second]
    # Even after a late one, which has not sent anything yet.
    fourth = Owner("c")
    assert passes.add(fourth, 7)
    assert passes.find_together(second) == [second]
    assert passes.find_together(fourth) == [fourth]


def test_an_open_pass_of_another_backward_also_makes_it_late(passes: OpenPasses) -> None:
    first, second = Owner("a"), Owner("a")
    passes.add(first, 7)
    assert passes.add(second, 8)


def test_members_count_as_they_are_now(passes: OpenPasses) -> None:
    owner = Owner("a")
    passes.add(owner, 7)
    assert passes.covers("a")
    assert not passes.covers("b")
    owner.members = {"a", "b"}
    assert passes.covers("b")
    passes.remove(owner)
    assert not passes.covers("a")


def test_a_discarded_owner_takes_its_pass_with_it(passes: OpenPasses) -> None:
    owner = Owner("a")
    ref = weakref.ref(owner)
    passes.add(owner, 7)
    del owner
    gc.collect()
    assert ref() is None
    assert not passes.covers("a")
    assert not passes.add(Owner("a"), 8)
