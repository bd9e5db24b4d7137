"""Process sets are numbered as in Horovod, the same on all ranks, or refused with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undertow.horovod.torch.process_sets import RankSets


def test_numbers_of_removed_sets_are_reused_oldest_first() -> None:
    sets = RankSets(4)
    assert [sets.add([rank]) for rank in range(3)] == [1, 2, 3]
    sets.remove(3)
    sets.remove(1)
    assert [sets.add(ranks) for ranks in ([0, 1], [1, 2], [2, 3])] == [3, 1, 4]
    assert sets.to_dict() == {0: [0, 1, 2, 3], 1: [1, 2], 2: [1], 3: [0, 1], 4: [2, 3]}
    assert sets.added == 6


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], "a process set of no ranks: give it at least one"),
        ([0, 1, 1], "a process set has rank 1 more than once"),
        ([0, 3], "there is no rank 3: ranks are 0 to 2"),
        ([-1, 0], "there is no rank -1: ranks are 0 to 2"),
        ([0, 1, 2], "the process set of ranks 0, 1 and 2 already exists: two sets cannot have the same ranks"),
        ([1, 2], "the process set of ranks 1 and 2 already exists: two sets cannot have the same ranks"),
        ([1], ""),
    ],
)
def test_ranks_that_cannot_form_a_set_are_explained(ranks: list[int], words: str) -> None:
    sets = RankSets(3)
    sets.add([1, 2])
    assert sets.find_fault(ranks) == words


def test_a_removed_set_can_be_added_again() -> None:
    sets = RankSets(2)
    sets.remove(sets.add([0]))
    assert sets.find_fault([0]) == ""


@given(st.lists(st.sets(st.integers(0, 3), min_size=1), max_size=20))
def test_no_two_sets_share_a_number_or_their_ranks(wanted: list[set[int]]) -> None:
    """Each set is added if possible; an existing set is removed."""
    sets = RankSets(4)
    for ranks in map(sorted, wanted):
        there = {number for number, own in sets.to_dict().items() if own == ranks}
        assert bool(sets.find_fault(ranks)) == bool(there)
        if not there:
            number = sets.add(ranks)
            assert sets.to_dict()[number] == ranks
        elif there != {0}:
            sets.remove(there.pop())
        known = sets.to_dict()
        assert known[0] == [0, 1, 2, 3]
        assert len({tuple(own) for own in known.values()}) == len(known)
