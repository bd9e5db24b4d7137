"""Agreements: one result for all ranks, and messages that name the first difference."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.fake_group import make_shape
from undertow.engine.coordinator.agreement import Agreements, Keys, compare_digests, find_latest
from undertow.engine.coordinator.messages import AgreementResult, Arrive, TableProposal
from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import Cut, Placement, TensorSpec, cut
from undertow.sizing import Sizes

pack = msgspec.msgpack.encode


def agreements(size: int = 2) -> Agreements:
    return Agreements(make_shape(size), Keys())


def tensor(name: str = "w", shape: tuple[int, ...] = (2, 3), dtype: DType = DType.FLOAT32) -> TensorSpec:
    elements = 1
    for side in shape:
        elements *= side
    return TensorSpec(name, shape, dtype, elements)


def tables(*tensors: TensorSpec, label: str = "Net", op: Op = Op.MEAN) -> Arrive:
    return Arrive(1, "tensors", pack(TableProposal(label, list(tensors), op, False)))


def result_of(*arrivals: Arrive) -> AgreementResult:
    """All ranks arrive; the result is the same for all."""
    made = agreements(len(arrivals))
    replies = [made.arrive(rank, arrival) for rank, arrival in enumerate(arrivals)]
    assert not any(replies[:-1])
    assert [rank for rank, _ in replies[-1]] == list(range(len(arrivals)))
    verdicts = {result for _, result in replies[-1]}
    assert len(verdicts) == 1
    return verdicts.pop()


def words_of(result: AgreementResult) -> str:
    assert result.mismatch is not None
    return result.mismatch.message


def test_a_barrier_ends_when_the_last_rank_has_arrived() -> None:
    made = agreements(3)
    assert made.arrive(2, Arrive(1, "barrier", b"")) == []
    assert made.arrive(0, Arrive(1, "barrier", b"")) == []
    replies = made.arrive(1, Arrive(1, "barrier", b""))
    assert replies == [(rank, AgreementResult(1, b"")) for rank in range(3)]


def test_a_group_of_one_agrees_with_itself() -> None:
    assert agreements(1).arrive(0, Arrive(1, "barrier", b"")) == [(0, AgreementResult(1, b""))]


def test_equal_tensors_get_their_keys() -> None:
    result = result_of(tables(tensor()), tables(tensor()))
    assert result.mismatch is None
    assert msgspec.msgpack.decode(result.payload, type=Cut).first_key == 0


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (tensor("v"), "ranks 0 and 1 hold different tensors in Net: 'w' [2, 3] float32 against 'v' [2, 3] float32"),
        (tensor(shape=(3, 2)), "'w' [2, 3] float32 against 'w' [3, 2] float32"),
        (tensor(dtype=DType.FLOAT64), "'w' [2, 3] float32 against 'w' [2, 3] float64"),
    ],
    ids=["name", "shape", "dtype"],
)
def test_another_tensor_is_named_with_both_ranks(theirs: TensorSpec, words: str) -> None:
    assert words in words_of(result_of(tables(tensor()), tables(theirs)))


def test_the_first_difference_is_named() -> None:
    ours = tables(tensor("a"), tensor("b"), tensor("c"))
    theirs = tables(tensor("a"), tensor("x"), tensor("y"))
    assert "'b' [2, 3] float32 against 'x'" in words_of(result_of(ours, theirs))


def test_the_rank_that_differs_is_named() -> None:
    assert "ranks 0 and 2 hold" in words_of(result_of(tables(tensor()), tables(tensor()), tables(tensor("v"))))


@pytest.mark.parametrize("extra_at", [0, 1])
def test_another_number_of_tensors_names_the_first_that_is_extra(extra_at: int) -> None:
    pair = [tables(tensor("a")), tables(tensor("a"))]
    pair[extra_at] = tables(tensor("a"), tensor("b"), tensor("c"))
    error = words_of(result_of(*pair))
    assert ("3 and 1" if extra_at == 0 else "1 and 3") in error
    assert "the first that is not on both is 'b' [2, 3] float32" in error


def test_a_difference_is_reported_with_its_tensor_and_ranks() -> None:
    ours, theirs = tables(tensor("a"), tensor("b")), tables(tensor("a"), tensor("c"))
    for second, name in (theirs, "b"), (tables(tensor("a")), "b"), (tables(), "a"):
        mismatch = result_of(ours, ours, second).mismatch
        assert mismatch is not None
        error = mismatch.make_error()
        assert (error.matter, error.tensor, error.ranks) == ("Net", name, (0, 2))
        assert str(error) == mismatch.message


def test_another_order_of_tensors_is_a_difference() -> None:
    first, second = tensor("a"), tensor("b")
    assert "'a' [2, 3] float32 against 'b'" in words_of(result_of(tables(first, second), tables(second, first)))


def test_another_model_of_the_same_shape_is_a_difference() -> None:
    error = words_of(result_of(tables(tensor()), tables(tensor(), label="Other")))
    assert error == "ranks 0 and 1 register different tables: Net (mean) against Other (mean)"


def test_a_part_of_the_job_names_its_ranks_as_the_job_does() -> None:
    made = Agreements(make_shape(2, names=(3, 5)), Keys())
    made.arrive(0, tables(tensor()))
    [(_, result), _] = made.arrive(1, tables(tensor("v")))
    assert words_of(result).startswith("ranks 3 and 5 hold different tensors in Net")
    made = Agreements(make_shape(2, names=(3, 5)), Keys())
    made.arrive(0, tables(tensor()))
    [(_, result), _] = made.arrive(1, Arrive(1, "barrier", b""))
    assert "rank 3 is at 'tensors', rank 5 at 'barrier'" in words_of(result)


def test_another_operation_is_a_difference() -> None:
    assert "Net (mean) against Net (sum)" in words_of(result_of(tables(tensor()), tables(tensor(), op=Op.SUM)))


def test_ranks_at_different_calls_fail_at_once() -> None:
    made = agreements(3)
    made.arrive(2, Arrive(1, "barrier", b""))
    replies = made.arrive(0, tables(tensor()))
    assert [rank for rank, _ in replies] == [0, 2]
    assert words_of(replies[0][1]) == (
        "ranks do different things: rank 0 is at 'tensors', rank 2 at 'barrier'. "
        "All ranks must run the same calls in the same order"
    )


def test_after_a_mismatch_every_arrival_is_answered_with_it() -> None:
    made = agreements(3)
    made.arrive(2, Arrive(1, "barrier", b""))
    made.arrive(0, tables(tensor()))
    for sequence in (1, 2, 3):
        [(rank, result)] = made.arrive(1, Arrive(sequence, "barrier", b""))
        assert (rank, result.sequence) == (1, sequence)
        assert "ranks do different things" in words_of(result)


def test_waits_for_names_what_the_others_are_at() -> None:
    made = agreements(2)
    assert made.waits_for(1) is None
    made.arrive(0, Arrive(1, "barrier", b""))
    assert made.waits_for(1) == "barrier"
    assert made.waits_for(0) is None
    made.arrive(1, Arrive(1, "barrier", b""))
    assert made.waits_for(1) is None


@pytest.mark.parametrize("dtype", list(DType))
def test_keys_are_never_used_twice(dtype: DType) -> None:
    made, used = Agreements(make_shape(2, sizes=Sizes(fixed=1040)), Keys()), 0
    for sequence, elements in enumerate((3, 100_000, 65, 260_001, 0), start=1):
        specs = [TensorSpec(f"t{number}", (elements,), dtype, elements) for number in range(3)]
        arrival = Arrive(sequence, "tensors", pack(TableProposal("Net", specs, Op.COPY, False)))
        made.arrive(0, arrival)
        how = msgspec.msgpack.decode(made.arrive(1, arrival)[0][1].payload, type=Cut)
        slices = cut(specs, how, op=Op.COPY, keep=False, placement=Placement(range(2)))
        assert how.first_key >= used
        used = how.first_key + len(slices)


def test_a_small_model_is_cut_finer_so_that_every_shard_has_a_share() -> None:
    result = result_of(*[tables(tensor(shape=(100_000,)))] * 4)
    assert msgspec.msgpack.decode(result.payload, type=Cut).slice_bytes == 100_000
    result = result_of(*[tables(tensor())] * 4)
    assert msgspec.msgpack.decode(result.payload, type=Cut).slice_bytes == 64 << 10
    result = result_of(*[tables(tensor(shape=(10_000_000,)))] * 4)
    assert msgspec.msgpack.decode(result.payload, type=Cut).slice_bytes == 1 << 20


def test_a_given_slice_size_is_taken_as_it_is() -> None:
    made, arrival = Agreements(make_shape(2, sizes=Sizes(fixed=8 << 20)), Keys()), tables(tensor(shape=(100_000,)))
    made.arrive(0, arrival)
    result = made.arrive(1, arrival)[0][1]
    assert msgspec.msgpack.decode(result.payload, type=Cut).slice_bytes == 8 << 20


def digests(*pairs: tuple[str, bytes]) -> bytes:
    return pack(list(pairs))


def test_equal_digests_are_no_difference() -> None:
    assert compare_digests([digests(("w", b"1"), ("b", b"2"))] * 3) == b""


def test_a_digest_that_differs_names_tensor_and_ranks() -> None:
    same, other = digests(("w", b"1"), ("b", b"2")), digests(("w", b"1"), ("b", b"3"))
    reply = compare_digests([same, same, other, same])
    assert msgspec.msgpack.decode(reply) == ["b", [2]]


def test_a_missing_digest_is_a_difference() -> None:
    reply = compare_digests([digests(("w", b"1")), digests(("w", b"1")), digests()])
    assert msgspec.msgpack.decode(reply) == ["w", [2]]


def test_a_digest_agreement_reaches_all() -> None:
    result = result_of(Arrive(1, "digest", digests(("w", b"1"))), Arrive(1, "digest", digests(("w", b"2"))))
    assert msgspec.msgpack.decode(result.payload)[0] == "w"


@pytest.mark.parametrize(
    ("counts", "reply"),
    [
        ([[3, 1], [3, 1]], [0, [3, 1], True]),
        ([[3, 1], [5, 2], [4, 2]], [1, [5, 2], False]),
        ([[0], [0], [7]], [2, [7], False]),
    ],
)
def test_a_join_resumes_where_the_last_rank_stopped(counts: list[list[int]], reply: list[object]) -> None:
    assert msgspec.msgpack.decode(find_latest([pack(count) for count in counts])) == reply


def test_a_rank_comes_to_an_agreement_once_and_to_none_that_is_over() -> None:
    made = agreements(2)
    barrier = Arrive(1, "barrier", b"")
    made.arrive(0, barrier)
    assert not made.expects(0, 1)
    assert made.expects(1, 1)
    made.arrive(1, barrier)
    assert not made.expects(0, 1)
    assert not made.expects(1, 1)
    assert made.expects(0, 2)


def test_a_rank_that_arrives_after_a_mismatch_is_expected_and_gets_it() -> None:
    made = agreements(3)
    made.arrive(0, Arrive(1, "barrier", b""))
    made.arrive(1, Arrive(1, "digest", b""))
    assert made.expects(2, 1)
    assert "different things" in words_of(made.arrive(2, Arrive(1, "barrier", b""))[0][1])


@pytest.mark.parametrize(
    ("matter", "good", "bad"),
    [
        ("tensors", pack(TableProposal("Net", [tensor()], Op.MEAN, False)), b"\xa1\xff"),
        ("digest", pack([("w", b"digest")]), b"\x91" * 100_000),
        ("join", pack([3]), pack([-3])),
    ],
)
def test_a_payload_that_cannot_be_read_is_named_to_all_with_its_rank(matter: str, good: bytes, bad: bytes) -> None:
    result = result_of(Arrive(1, matter, good), Arrive(1, matter, bad))
    assert words_of(result).startswith("the payload of rank 1 for an agreement cannot be read: ")


def test_a_matter_that_the_coordinator_does_not_know_is_named_to_all() -> None:
    result = result_of(Arrive(1, "the weather", b""), Arrive(1, "the weather", b""))
    assert words_of(result).startswith("ranks come to 'the weather', which rank 0 does not know")


def test_ranks_with_different_numbers_of_tables_cannot_join() -> None:
    result = result_of(Arrive(1, "join", pack([3, 4])), Arrive(1, "join", pack([3])))
    assert words_of(result) == "rank 0 has 2 tables of tensors, rank 1 has 1"


def test_no_agreement_waits_for_a_server() -> None:
    made = Agreements(make_shape(3, dedicated_servers=1), Keys())
    assert made.arrive(0, Arrive(1, "barrier", b"")) == []
    assert (made.waits_for(1), made.waits_for(2)) == ("barrier", None)
    assert (made.expects(1, 1), made.expects(2, 1)) == (True, False)
    assert made.arrive(1, Arrive(1, "barrier", b"")) == [(rank, AgreementResult(1, b"")) for rank in (0, 1)]
