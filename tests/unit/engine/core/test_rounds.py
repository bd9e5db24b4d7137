"""The round: contributions in any order, one result in rank order, bit for bit."""

from __future__ import annotations

import itertools
import warnings

import ml_dtypes
import numpy as np
import pytest

from undertow.engine.core import rounds
from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Array, KeySpec, Op, Outcome, Round


def spec(dtype: DType = DType.FLOAT32, op: Op = Op.SUM, elements: int = 3) -> KeySpec:
    return KeySpec(0, elements, dtype, op, 0)


def run(
    key: KeySpec, contributions: list[Array | None], order: list[int] | None = None, *, owned: tuple[int, ...] = ()
) -> Outcome:
    round_ = Round(key, len(contributions), lambda array: None)
    for rank in order or range(len(contributions)):
        array = contributions[rank]
        round_.add(rank, None if array is None else array.copy(), int(array is not None), is_owned=rank in owned)
    assert round_.is_complete()
    return round_.finish()


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


# 1e8 + 1 is 1e8 in float32, so only the order tells whether the ones survive.
ORDER_MATTERS = [f32(1e8), f32(1.0), f32(-1e8), f32(1.0), f32(3e-8), f32(1.0)]


def plain_sum(arrays: list[Array]) -> Array:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = total + array
    return total


def test_other_orders_of_addition_would_give_other_bits() -> None:
    sums = {plain_sum(list(order)).tobytes() for order in itertools.permutations(ORDER_MATTERS)}
    assert len(sums) > 3


@pytest.mark.parametrize("owned", [(), (0, 1, 2, 3, 4, 5), (1, 2, 3, 4, 5), (3, 4, 5), (5,)])
def test_every_order_of_arrival_gives_the_sum_in_rank_order(owned: tuple[int, ...]) -> None:
    expected = plain_sum(ORDER_MATTERS).tobytes()
    for order in itertools.permutations(range(6)):
        outcome = run(spec(elements=1), list(ORDER_MATTERS), list(order), owned=owned)
        assert outcome.array is not None
        assert outcome.array.tobytes() == expected


def test_folding_early_gives_the_same_bits_as_folding_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    parts = [(random.standard_normal(5) * 10.0 ** random.integers(-4, 5, 5)).astype(np.float32) for _ in range(13)]
    early = run(spec(elements=5), list(parts))
    monkeypatch.setattr(rounds, "FOLD_AT", 1000)
    late = run(spec(elements=5), list(parts))
    assert early.array is not None
    assert late.array is not None
    assert early.array.tobytes() == late.array.tobytes() == plain_sum(parts).tobytes()


def test_arrays_longer_than_a_block_are_added_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "BLOCK_ELEMENTS", 4)
    outcome = run(spec(elements=11), [np.full(11, rank, np.float32) for rank in range(3)])
    np.testing.assert_array_equal(outcome.array, np.full(11, 3, np.float32))


@pytest.mark.parametrize(
    ("dtype", "kind"), [(DType.FLOAT16, np.float16), (DType.BFLOAT16, ml_dtypes.bfloat16)], ids=["float16", "bfloat16"]
)
def test_16_bit_floats_are_summed_in_float32_and_rounded_once(dtype: DType, kind: type) -> None:
    # In 16 bits each of the small ones would vanish next to the large one.
    parts = [np.array([256.0], kind)] + [np.array([0.0625], kind)] * 32
    outcome = run(spec(dtype, elements=1), parts)  # type: ignore[arg-type]
    assert outcome.array is not None
    assert outcome.array.dtype == kind
    assert float(outcome.array[0]) == 258.0
    assert float(plain_sum(parts)[0]) == 256.0  # type: ignore[arg-type]


def test_a_mean_of_16_bit_floats_does_not_overflow_on_the_way() -> None:
    outcome = run(spec(DType.FLOAT16, Op.MEAN, 1), [np.array([40000.0], np.float16)] * 4)
    assert outcome.array is not None
    assert float(outcome.array[0]) == 40000.0


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32])
def test_infinite_gradients_pass_without_a_warning(dtype: DType) -> None:
    # A loss scaler looks for them: they are no error, also where warnings are errors.
    largest = np.array([np.finfo(dtype.numpy).max, np.inf], dtype.numpy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Six workers: the first of them are folded before the last has come.
        outcome = run(spec(dtype, elements=2), [largest, largest * np.array([1, -1], dtype.numpy)] * 3)
    assert outcome.array is not None
    assert np.isinf(outcome.array[0])
    assert np.isnan(outcome.array[1])


def test_integers_are_summed_exactly() -> None:
    outcome = run(spec(DType.INT64, elements=1), [np.array([2**53]), np.array([1]), np.array([-3])])
    assert outcome.array is not None
    assert outcome.array.tolist() == [2**53 - 2]


def test_an_empty_contribution_counts_as_zero() -> None:
    outcome = run(spec(op=Op.MEAN), [None, f32(2, 4, 6), None, f32(2, 0, 2)])
    assert outcome.array is not None
    assert outcome.array.tolist() == [1, 1, 2]


def test_where_all_are_empty_so_is_the_result() -> None:
    assert run(spec(), [None, None, None]) == Outcome(None, 0, 0)


def test_a_single_contribution_keeps_its_bits() -> None:
    lonely = f32(-0.0, 1e-45, 3.0)
    outcome = run(spec(), [None, lonely])
    assert outcome.array is not None
    assert outcome.array.tobytes() == lonely.tobytes()


def test_a_round_of_one_worker_is_its_contribution() -> None:
    mine = f32(1, 2, 3)
    round_ = Round(spec(op=Op.MEAN), 1, lambda array: None)
    round_.add(0, mine, 1)
    outcome = round_.finish()
    assert outcome.array is not None
    assert outcome.array.tolist() == [1, 2, 3]
    assert outcome.array is not mine


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_copy_takes_the_lowest_rank_that_holds_a_value(order: tuple[int, ...]) -> None:
    outcome = run(spec(op=Op.COPY), [None, f32(1, 2, 3), f32(7, 8, 9)], list(order), owned=(0, 2))
    assert outcome.array is not None
    assert outcome.array.tolist() == [1, 2, 3]


def test_copy_of_many_takes_the_lowest_also_when_folded_early() -> None:
    parts: list[Array | None] = [None, None, *(np.full(3, rank, np.float32) for rank in range(2, 12))]
    outcome = run(spec(op=Op.COPY), parts, owned=tuple(range(12)))
    assert outcome.array is not None
    assert outcome.array.tolist() == [2, 2, 2]


def test_bytes_are_copied_as_they_are() -> None:
    outcome = run(spec(DType.BYTES, Op.COPY), [np.array([1, 255, 0], np.uint8), np.array([9, 9, 9], np.uint8)])
    assert outcome.array is not None
    assert outcome.array.tolist() == [1, 255, 0]


def test_present_bits_of_all_come_together() -> None:
    round_ = Round(spec(), 3, lambda array: None)
    round_.add(0, f32(0, 0, 1), 0b100)
    round_.add(1, None, 0)
    round_.add(2, f32(1, 0, 0), 0b001)
    assert round_.finish().present == 0b101


def test_absent_workers_are_not_waited_for() -> None:
    round_ = Round(spec(), 4, lambda array: None)
    round_.add(0, f32(1, 1, 1), 1)
    round_.add(3, f32(2, 2, 2), 1)
    assert not round_.is_complete()
    assert not round_.is_complete(frozenset({1}))
    assert round_.missing(frozenset({1})) == [2]
    assert round_.is_complete(frozenset({1, 2}))
    outcome = round_.finish(frozenset({1, 2}))
    assert outcome.absent == 2
    assert outcome.array is not None
    assert outcome.array.tolist() == [3, 3, 3]


def test_a_worker_that_contributed_before_it_joined_is_not_absent() -> None:
    round_ = Round(spec(), 2, lambda array: None)
    round_.add(0, f32(1, 1, 1), 1)
    round_.add(1, f32(1, 1, 1), 1)
    assert round_.is_complete(frozenset({1}))
    assert round_.finish(frozenset({1}), divide_by_active=True).absent == 0


@pytest.mark.parametrize(("divide_by_active", "mean"), [(False, 1.5), (True, 3.0)])
def test_a_mean_is_over_all_workers_or_over_those_still_active(divide_by_active: bool, mean: float) -> None:
    round_ = Round(spec(op=Op.MEAN, elements=1), 4, lambda array: None)
    round_.add(0, f32(2), 1)
    round_.add(1, f32(4), 1)
    outcome = round_.finish(frozenset({2, 3}), divide_by_active=divide_by_active)
    assert outcome.array is not None
    assert outcome.array.tolist() == [mean]


def test_a_contribution_of_the_own_worker_is_only_read() -> None:
    own = f32(1, 2, 3)
    round_ = Round(spec(op=Op.MEAN), 2, lambda array: None)
    round_.add(0, own, 1)
    round_.add(1, f32(10, 10, 10), 1, is_owned=True)
    round_.finish()
    assert own.tolist() == [1, 2, 3]


def test_the_result_also_lands_in_the_memory_that_was_named() -> None:
    for dtype in (DType.FLOAT32, DType.FLOAT16):
        own = np.array([1, 2, 3], dtype.numpy)
        round_ = Round(spec(dtype, Op.MEAN), 2, lambda array: None)
        round_.add(0, own, 1)
        round_.add(1, np.array([3, 2, 1], dtype.numpy), 1, is_owned=True)
        outcome = round_.finish(into=own)
        assert own.tolist() == [2, 2, 2]
        assert outcome.array is not None
        assert not np.shares_memory(outcome.array, own)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
@pytest.mark.parametrize("op", [Op.SUM, Op.COPY])
@pytest.mark.parametrize("size", [2, 5, 9])
def test_owned_memory_is_released_once_and_other_memory_never(dtype: DType, op: Op, size: int) -> None:
    released: list[int] = []
    round_ = Round(spec(dtype, op), size, lambda array: released.append(id(array)))
    arrays = [np.ones(3, dtype.numpy) for _ in range(size)]
    for rank, array in enumerate(arrays):
        round_.add(rank, array, 1, is_owned=rank != 0)
    outcome = round_.finish()
    in_result = [id(array) for array in arrays if outcome.array is array]
    assert sorted(released + in_result) == sorted(id(array) for array in arrays[1:])


def test_a_second_contribution_of_one_rank_is_a_defect() -> None:
    round_ = Round(spec(), 2, lambda array: None)
    round_.add(1, None)
    with pytest.raises(AssertionError, match="rank 1 contributed twice to key 0"):
        round_.add(1, None)
    assert round_.has(1)
    assert not round_.has(0)
    assert round_.missing() == [0]


def test_a_key_knows_its_bytes() -> None:
    assert spec(DType.BFLOAT16, elements=7).size_bytes == 14
    assert spec(DType.FLOAT64, elements=7).size_bytes == 56
