"""All ranks get the same cause if a group of some of them cannot be formed."""

from __future__ import annotations

import msgspec
import pytest

from undertow.errors import ConfigError, PeerLost
from undertow.runtime.subsets import _agree, _describe, _Entry, _Failure, _list_causes, _SubsetRendezvous

LOST_1 = PeerLost("it changed its mind", rank=1, host="b")


def agree(*failures: Exception | None) -> str:
    told: list[_Failure | None] = [None if error is None else _describe(error) for error in failures]
    return _list_causes(_agree(told[0], lambda title, own: [own, *map(msgspec.msgpack.encode, told[1:])]))


def test_a_group_that_all_have_joined_is_formed() -> None:
    assert agree(None, None, None) == ""


@pytest.mark.parametrize(
    "failures",
    [
        (LOST_1, ConfigError("it was complete"), None),
        (LOST_1, ConfigError("it was complete"), LOST_1),
        (PeerLost("cut off", rank=2), ConfigError("it was complete"), LOST_1),  # lost by way of another
    ],
)
def test_the_loss_of_a_rank_that_has_its_own_reason_is_no_cause(failures: tuple[Exception | None, ...]) -> None:
    assert agree(*failures) == "rank 1: it was complete"


def test_a_loss_of_a_rank_that_noticed_nothing_is_the_cause() -> None:
    assert agree(LOST_1, None, None) == "rank 0: rank 1 on host b was lost: it changed its mind"


def test_ranks_that_lost_each_other_are_both_causes() -> None:
    assert agree(PeerLost("a cut", rank=1), PeerLost("a cut", rank=0)) == (
        "rank 0: rank 1 was lost: a cut; rank 1: rank 0 was lost: a cut"
    )


def test_errors_of_the_system_have_their_kind_and_at_most_three_are_named() -> None:
    full = OSError(24, "Too many open files")
    reason = "OSError: [Errno 24] Too many open files"
    assert agree(full, full, full, full) == f"rank 0: {reason}; rank 1: {reason}; rank 2: {reason}"


def test_a_rank_that_cannot_join_is_named_to_the_others() -> None:
    entries = [msgspec.msgpack.encode(one) for one in (_Entry(b"a"), _Entry(can_come=False), _Entry(b"c"))]
    with pytest.raises(PeerLost) as caught:
        _SubsetRendezvous([0, 2], lambda title, own: entries).meet(b"a")
    assert caught.value.ranks == (1,)
