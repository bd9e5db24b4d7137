"""The shard: answers all workers when a round is complete, refuses invalid contributions."""

from __future__ import annotations

import numpy as np
import pytest

from undertow.engine.core.dtypes import DType
from undertow.engine.core.frames import Unexpected
from undertow.engine.core.rounds import Array, KeySpec, Op
from undertow.engine.server.shard import Answer, Shard

KEY = 4


def shard(size: int = 3, *, op: Op = Op.SUM, keep: bool = False) -> Shard:
    made = Shard(size)
    made.own([KeySpec(key, 2, DType.FLOAT32, op, 0, keep) for key in (KEY, KEY + 1)])
    return made


def values(number: float) -> Array:
    return np.full(2, number, np.float32)


def give(to: Shard, rank: int, step: int = 1, number: float | None = 1.0, *, key: int = KEY) -> list[Answer]:
    array = None if number is None else values(number)
    return to.contribute(rank, key, step, array, present=int(number is not None), wants=True)


def complete(to: Shard, size: int = 3, step: int = 1) -> list[Answer]:
    return [answer for rank in range(size) for answer in give(to, rank, step, rank + 1.0)]


def numbers(answers: list[Answer]) -> list[tuple[int, float | None]]:
    return [(answer.rank, None if answer.array is None else float(answer.array[0])) for answer in answers]


def test_everyone_is_answered_when_the_last_contribution_comes() -> None:
    store = shard()
    assert give(store, 2, number=3.0) == []
    assert give(store, 0, number=1.0) == []
    answers = give(store, 1, number=2.0)
    assert numbers(answers) == [(0, 6.0), (1, 6.0), (2, 6.0)]
    assert {(answer.key, answer.step, answer.present, answer.absent) for answer in answers} == {(KEY, 1, 1, 0)}


def test_a_worker_that_does_not_want_the_result_gets_an_empty_answer() -> None:
    store = shard(2)
    store.contribute(0, KEY, 1, values(1), present=1, wants=False)
    assert numbers(give(store, 1)) == [(0, None), (1, 2.0)]


def test_the_own_workers_result_is_put_in_place() -> None:
    store, mine = shard(2), values(5)
    store.contribute_own(0, KEY, 1, mine, present=1, into=mine)
    assert numbers(give(store, 1)) == [(0, None), (1, 6.0)]
    assert mine.tolist() == [6, 6]


def test_the_own_worker_may_want_nothing_back() -> None:
    store, mine = shard(2), values(5)
    store.contribute_own(0, KEY, 1, mine, present=1, into=None)
    assert numbers(give(store, 1)) == [(0, None), (1, 6.0)]
    assert mine.tolist() == [5, 5]


def test_a_round_where_all_are_empty_has_no_result() -> None:
    store = shard(2)
    give(store, 0, number=None)
    [first, second] = give(store, 1, number=None)
    assert first.array is None
    assert second.present == 0


def test_keys_are_independent() -> None:
    store = shard(2)
    give(store, 0)
    assert len(give(store, 0, key=KEY + 1)) == 0
    assert len(give(store, 1, key=KEY + 1)) == 2
    assert len(give(store, 1)) == 2


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(Unexpected, match="key 99 is not known here"):
        give(shard(), 0, key=99)
    with pytest.raises(Unexpected, match="key 99 is not known here"):
        shard().pull(0, 99, 1)


def test_a_second_contribution_to_one_round_is_refused_and_changes_nothing() -> None:
    store = shard(2)
    give(store, 0, number=1.0)
    with pytest.raises(Unexpected, match="a second contribution of rank 0 to round 1 of key 4"):
        give(store, 0, number=100.0)
    assert numbers(give(store, 1, number=2.0)) == [(0, 3.0), (1, 3.0)]


@pytest.mark.parametrize("step", [0, 1, 3, 10**6])
def test_rounds_of_the_past_and_of_the_far_future_are_refused(step: int) -> None:
    store = shard()
    complete(store)
    with pytest.raises(Unexpected, match=f"round {step} of key 4 from rank 0: 1 rounds are done"):
        give(store, 0, step)


def test_a_round_begins_only_after_the_one_before() -> None:
    store = shard(2)
    give(store, 0, 1, 1.0)
    with pytest.raises(Unexpected, match="round 2 of key 4 from rank 0: 0 rounds are done"):
        give(store, 0, 2, 10.0)
    assert numbers(give(store, 1, 1, 2.0)) == [(0, 3.0), (1, 3.0)]


def test_a_kept_value_can_be_pulled_by_anyone() -> None:
    store = shard(keep=True)
    complete(store)
    answer = store.pull(2, KEY, 1)
    assert numbers([answer]) == [(2, 6.0)]
    assert (answer.step, answer.present) == (1, 1)


def test_a_round_replaces_the_kept_value() -> None:
    store = shard(2, keep=True)
    complete(store, 2, step=1)
    give(store, 0, 2, 50.0)
    assert numbers([store.pull(0, KEY, 1)]) == [(0, 3.0)]
    give(store, 1, 2, 50.0)
    assert numbers([store.pull(0, KEY, 2)]) == [(0, 100.0)]


def test_an_empty_round_leaves_the_kept_value_and_the_pull_is_answered_with_the_pullers_step() -> None:
    store = shard(2, keep=True)
    complete(store, 2, step=1)
    give(store, 0, 2, None)
    give(store, 1, 2, None)
    answer = store.pull(1, KEY, 2)
    assert numbers([answer]) == [(1, 3.0)]
    assert answer.step == 2


def test_a_pull_of_a_key_without_value_is_refused() -> None:
    store = shard(2)
    complete(store, 2)
    with pytest.raises(Unexpected, match="rank 1 pulls key 4, which has no value"):
        store.pull(1, KEY, 1)


def test_a_join_in_the_middle_of_a_round_completes_it() -> None:
    store = shard()
    complete(store)
    give(store, 0, 2, 1.0)
    give(store, 1, 2, 2.0)
    answers = store.join(2, [KEY, 99], 1, divide_by_active=False)
    assert numbers(answers) == [(0, 3.0), (1, 3.0)]
    assert {answer.absent for answer in answers} == {1}


def test_rounds_after_a_join_do_not_wait_for_who_joined() -> None:
    store = shard(op=Op.MEAN)
    store.join(2, [KEY], 0, divide_by_active=True)
    give(store, 0, 1, 1.0)
    assert numbers(give(store, 1, 1, 2.0)) == [(0, 1.5), (1, 1.5)]


def test_a_mean_is_divided_by_all_workers_by_default() -> None:
    store = shard(op=Op.MEAN)
    store.join(2, [KEY], 0, divide_by_active=False)
    give(store, 0, 1, 1.0)
    assert numbers(give(store, 1, 1, 2.0)) == [(0, 1.0), (1, 1.0)]


def test_a_join_is_for_the_named_keys_only() -> None:
    store = shard(2)
    store.join(1, [KEY], 0, divide_by_active=False)
    assert len(give(store, 0)) == 1
    assert give(store, 0, key=KEY + 1) == []


def test_after_all_have_joined_everyone_is_waited_for_again() -> None:
    store = shard(2)
    for rank in range(2):
        store.join(rank, [KEY], 0, divide_by_active=True)
    store.rejoin([KEY, 99], 5)
    assert give(store, 0, 6) == []
    assert len(give(store, 1, 6)) == 2


def test_a_join_that_arrives_after_all_have_resumed_is_ignored() -> None:
    store = shard(2)
    store.rejoin([KEY], 5)
    assert store.join(1, [KEY], 4, divide_by_active=False) == []
    assert give(store, 0, 6) == []


def test_missing_names_who_has_not_contributed() -> None:
    store = shard()
    assert store.missing(KEY, 1) == [0, 1, 2]
    give(store, 1)
    assert store.missing(KEY, 1) == [0, 2]
    store.join(0, [KEY], 0, divide_by_active=False)
    assert store.missing(KEY, 1) == [2]
    give(store, 2)
    assert store.missing(KEY, 1) == []
    assert store.missing(99, 1) == []


def test_a_round_is_blocked_by_a_departed_worker_that_it_needs() -> None:
    store = shard()
    assert store.blocked_by([2]) is None
    give(store, 1)
    assert store.blocked_by([1]) is None
    assert store.blocked_by([1, 2]) == 2
    store.join(2, [KEY], 0, divide_by_active=False)
    assert store.blocked_by([2]) is None


def test_owned_memory_is_released_through_the_shard() -> None:
    released: list[int] = []
    store = Shard(3, lambda array: released.append(id(array)))
    store.own([KeySpec(KEY, 2, DType.FLOAT32, Op.SUM, 0)])
    arrays = [values(rank) for rank in range(3)]
    store.contribute_own(0, KEY, 1, arrays[0], present=1, into=None)
    for rank in (1, 2):
        store.contribute(rank, KEY, 1, arrays[rank], present=1, wants=True)
    assert id(arrays[0]) not in released
    assert len(released) == len(set(released))


def test_a_server_is_no_worker() -> None:
    store = shard(3)
    give(store, 0)
    with pytest.raises(Unexpected, match=f"a contribution of rank 3, a server, to key {KEY}"):
        give(store, 3)
    assert store.blocked_by([3, 4]) is None
    assert store.blocked_by([4, 2]) == 2
