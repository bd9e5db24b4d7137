"""Gathered contributions: complete in rank order, refused if they are not valid."""

from __future__ import annotations

import pytest

from undertow.engine.core.dtypes import DType
from undertow.engine.core.frames import Unexpected
from undertow.engine.core.rounds import EVERYONE, KeySpec, Op
from undertow.engine.server.gathering import Gathering, RankBytes

KEY = 5
SPEC = KeySpec(KEY, 0, DType.BYTES, Op.GATHER, EVERYONE)


def make_gathering(size: int = 3) -> Gathering:
    gathering = Gathering(size)
    gathering.own([SPEC])
    return gathering


def piece(number: int) -> RankBytes:
    return RankBytes(None, number)


def test_contributions_are_returned_in_rank_order_with_the_last_one() -> None:
    gathering = make_gathering()
    assert gathering.contribute(2, KEY, 1, piece(2)) is None
    assert gathering.contribute(0, KEY, 1, piece(0)) is None
    assert gathering.contribute(1, KEY, 1, piece(1)) == [piece(0), piece(1), piece(2)]


def test_a_worker_that_has_everything_may_be_one_round_ahead() -> None:
    gathering = make_gathering()
    gathering.contribute(1, KEY, 1, piece(1))
    gathering.contribute(1, KEY, 2, piece(11))
    gathering.contribute(0, KEY, 1, piece(0))
    assert gathering.contribute(2, KEY, 1, piece(2)) == [piece(0), piece(1), piece(2)]
    gathering.contribute(0, KEY, 2, piece(10))
    assert gathering.contribute(2, KEY, 2, piece(12)) == [piece(10), piece(11), piece(12)]


@pytest.mark.parametrize("step", [0, 3])
def test_a_round_that_is_over_or_too_far_ahead_is_refused(step: int) -> None:
    with pytest.raises(Unexpected, match=f"round {step} of key {KEY} from rank 1: 0 rounds are done"):
        make_gathering().expects(1, KEY, step)


def test_a_second_piece_of_the_same_worker_is_refused() -> None:
    gathering = make_gathering()
    gathering.contribute(1, KEY, 1, piece(1))
    with pytest.raises(Unexpected, match="second contribution of rank 1"):
        gathering.contribute(1, KEY, 1, piece(1))
    assert gathering.missing(KEY, 1) == [0, 2]


def test_who_is_missing_and_who_blocks_is_known() -> None:
    gathering = make_gathering()
    assert gathering.blocked_by({0, 1, 2}) is None
    gathering.contribute(1, KEY, 1, piece(1))
    assert gathering.missing(KEY, 1) == [0, 2]
    assert gathering.missing(KEY, 0) == []
    assert gathering.blocked_by({1}) is None
    assert gathering.blocked_by({1, 2}) == 2


def test_other_keys_are_not_known() -> None:
    assert KEY in make_gathering().keys
    assert KEY + 1 not in make_gathering().keys


def test_a_key_that_is_disowned_is_not_known_and_begins_anew_when_owned_again() -> None:
    gathering = make_gathering(2)
    for step in (1, 2, 3):
        gathering.contribute(0, KEY, step, piece(0))
        gathering.contribute(1, KEY, step, piece(0))
    gathering.disown([KEY, KEY + 1])
    assert KEY not in gathering.keys
    assert gathering.missing(KEY, 4) == []
    assert gathering.blocked_by([0, 1]) is None
    gathering.own([SPEC])
    with pytest.raises(Unexpected):
        gathering.expects(1, KEY, 4)
    gathering.contribute(0, KEY, 1, piece(5))
    assert gathering.contribute(1, KEY, 1, piece(6)) == [piece(5), piece(6)]


def test_a_server_is_no_worker() -> None:
    gathering = make_gathering(3)
    gathering.contribute(0, KEY, 1, piece(0))
    with pytest.raises(Unexpected, match=f"a contribution of rank 3, a server, to key {KEY}"):
        gathering.contribute(3, KEY, 1, piece(3))
    assert gathering.blocked_by([3, 4]) is None
    assert gathering.blocked_by([4, 2]) == 2
