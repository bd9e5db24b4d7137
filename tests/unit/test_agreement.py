"""Agreements: one verdict for all ranks, and words that name the first difference."""

from __future__ import annotations

import msgspec
import pytest

from undertow.coordinator.agreement import Agreements, compare_digests, latest
from undertow.coordinator.messages import Arrive, Table, Verdict
from undertow.core.dtypes import DType
from undertow.core.rounds import Op
from undertow.plan.placement import Placement
from undertow.plan.sizing import Sizes
from undertow.plan.slicing import Cut, TensorSpec, cut

pack = msgspec.msgpack.encode


def agreements(size: int = 2) -> Agreements:
    return Agreements(size, sizes=Sizes())


def tensor(name: str = "w", shape: tuple[int, ...] = (2, 3), dtype: DType = DType.FLOAT32) -> TensorSpec:
    elements = 1
    for side in shape:
        elements *= side
    return TensorSpec(name, shape, dtype, elements)


def tables(*tensors: TensorSpec, label: str = "Net", op: Op = Op.MEAN) -> Arrive:
    return Arrive(1, "tensors", pack(Table(label, list(tensors), op, False)))


def verdict_on(*arrivals: Arrive) -> Verdict:
    """All ranks arrive; the verdict is the same for all."""
    made = agreements(len(arrivals))
    replies = [made.arrive(rank, arrival) for rank, arrival in enumerate(arrivals)]
    assert not any(replies[:-1])
    assert [rank for rank, _ in replies[-1]] == list(range(len(arrivals)))
    verdicts = {verdict for _, verdict in replies[-1]}
    assert len(verdicts) == 1
    return verdicts.pop()


def test_a_barrier_opens_when_the_last_rank_is_there() -> None:
    made = agreements(3)
    assert made.arrive(2, Arrive(1, "barrier", b"")) == []
    assert made.arrive(0, Arrive(1, "barrier", b"")) == []
    replies = made.arrive(1, Arrive(1, "barrier", b""))
    assert replies == [(rank, Verdict(1, b"")) for rank in range(3)]


def test_a_group_of_one_agrees_with_itself() -> None:
    assert agreements(1).arrive(0, Arrive(1, "barrier", b"")) == [(0, Verdict(1, b""))]


def test_equal_tensors_get_their_keys() -> None:
    verdict = verdict_on(tables(tensor()), tables(tensor()))
    assert verdict.error == ""
    assert msgspec.msgpack.decode(verdict.payload, type=Cut).first_key == 0


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
    assert words in verdict_on(tables(tensor()), tables(theirs)).error


def test_the_first_difference_is_named() -> None:
    ours = tables(tensor("a"), tensor("b"), tensor("c"))
    theirs = tables(tensor("a"), tensor("x"), tensor("y"))
    assert "'b' [2, 3] float32 against 'x'" in verdict_on(ours, theirs).error


def test_the_rank_that_differs_is_named() -> None:
    assert "ranks 0 and 2 hold" in verdict_on(tables(tensor()), tables(tensor()), tables(tensor("v"))).error


@pytest.mark.parametrize("extra_at", [0, 1])
def test_another_number_of_tensors_names_the_first_that_is_extra(extra_at: int) -> None:
    pair = [tables(tensor("a")), tables(tensor("a"))]
    pair[extra_at] = tables(tensor("a"), tensor("b"), tensor("c"))
    error = verdict_on(*pair).error
    assert ("3 and 1" if extra_at == 0 else "1 and 3") in error
    assert "the first that is not on both is 'b' [2, 3] float32" in error


def test_another_order_of_tensors_is_a_difference() -> None:
    first, second = tensor("a"), tensor("b")
    assert "'a' [2, 3] float32 against 'b'" in verdict_on(tables(first, second), tables(second, first)).error


def test_another_model_of_the_same_shape_is_a_difference() -> None:
    error = verdict_on(tables(tensor()), tables(tensor(), label="Other")).error
    assert error == "rank 0 registers Net, rank 1 registers Other"


def test_a_part_of_the_job_names_its_ranks_as_the_job_does() -> None:
    made = Agreements(2, sizes=Sizes(), name=(3, 5).__getitem__)
    made.arrive(0, tables(tensor()))
    [(_, verdict), _] = made.arrive(1, tables(tensor("v")))
    assert verdict.error.startswith("ranks 3 and 5 hold different tensors in Net")
    made = Agreements(2, sizes=Sizes(), name=(3, 5).__getitem__)
    made.arrive(0, tables(tensor()))
    [(_, verdict), _] = made.arrive(1, Arrive(1, "barrier", b""))
    assert "rank 3 is at 'tensors', rank 5 at 'barrier'" in verdict.error


def test_another_operation_is_a_difference() -> None:
    assert verdict_on(tables(tensor()), tables(tensor(), op=Op.SUM)).error


def test_ranks_at_different_calls_are_told_at_once() -> None:
    made = agreements(3)
    made.arrive(2, Arrive(1, "barrier", b""))
    replies = made.arrive(0, tables(tensor()))
    assert [rank for rank, _ in replies] == [0, 2]
    assert replies[0][1].error == (
        "ranks do different things: rank 0 is at 'tensors', rank 2 at 'barrier'. "
        "All ranks must run the same calls in the same order"
    )


def test_after_a_mismatch_everyone_who_comes_hears_of_it() -> None:
    made = agreements(3)
    made.arrive(2, Arrive(1, "barrier", b""))
    made.arrive(0, tables(tensor()))
    for sequence in (1, 2, 3):
        [(rank, verdict)] = made.arrive(1, Arrive(sequence, "barrier", b""))
        assert (rank, verdict.sequence) == (1, sequence)
        assert "ranks do different things" in verdict.error


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
    made, used = Agreements(2, sizes=Sizes(fixed=1040)), 0
    for sequence, elements in enumerate((3, 100_000, 65, 260_001, 0), start=1):
        specs = [TensorSpec(f"t{number}", (elements,), dtype, elements) for number in range(3)]
        arrival = Arrive(sequence, "tensors", pack(Table("Net", specs, Op.COPY, False)))
        made.arrive(0, arrival)
        how = msgspec.msgpack.decode(made.arrive(1, arrival)[0][1].payload, type=Cut)
        slices = cut(specs, how, op=Op.COPY, keep=False, placement=Placement(2))
        assert how.first_key >= used
        used = how.first_key + len(slices)


def test_a_small_model_is_cut_finer_so_that_every_shard_has_a_share() -> None:
    verdict = verdict_on(*[tables(tensor(shape=(100_000,)))] * 4)
    assert msgspec.msgpack.decode(verdict.payload, type=Cut).slice_bytes == 100_000
    verdict = verdict_on(*[tables(tensor())] * 4)
    assert msgspec.msgpack.decode(verdict.payload, type=Cut).slice_bytes == 64 << 10
    verdict = verdict_on(*[tables(tensor(shape=(10_000_000,)))] * 4)
    assert msgspec.msgpack.decode(verdict.payload, type=Cut).slice_bytes == 1 << 20


def test_a_given_slice_size_is_taken_as_it_is() -> None:
    made, arrival = Agreements(2, sizes=Sizes(fixed=8 << 20)), tables(tensor(shape=(100_000,)))
    made.arrive(0, arrival)
    verdict = made.arrive(1, arrival)[0][1]
    assert msgspec.msgpack.decode(verdict.payload, type=Cut).slice_bytes == 8 << 20


def digests(*pairs: tuple[str, bytes]) -> bytes:
    return pack(list(pairs))


def test_equal_digests_say_nothing() -> None:
    assert compare_digests([digests(("w", b"1"), ("b", b"2"))] * 3) == b""


def test_a_digest_that_differs_names_tensor_and_ranks() -> None:
    same, other = digests(("w", b"1"), ("b", b"2")), digests(("w", b"1"), ("b", b"3"))
    reply = compare_digests([same, same, other, same])
    assert msgspec.msgpack.decode(reply) == ["b", [2]]


def test_a_missing_digest_is_a_difference() -> None:
    reply = compare_digests([digests(("w", b"1")), digests(("w", b"1")), digests()])
    assert msgspec.msgpack.decode(reply) == ["w", [2]]


def test_a_digest_agreement_reaches_all() -> None:
    verdict = verdict_on(Arrive(1, "digest", digests(("w", b"1"))), Arrive(1, "digest", digests(("w", b"2"))))
    assert msgspec.msgpack.decode(verdict.payload)[0] == "w"


@pytest.mark.parametrize(
    ("counts", "reply"),
    [
        ([[3, 1], [3, 1]], [0, [3, 1], True]),
        ([[3, 1], [5, 2], [4, 2]], [1, [5, 2], False]),
        ([[0], [0], [7]], [2, [7], False]),
    ],
)
def test_a_join_goes_on_where_the_last_rank_stopped(counts: list[list[int]], reply: list[object]) -> None:
    assert msgspec.msgpack.decode(latest([pack(count) for count in counts])) == reply


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


def test_who_comes_after_a_mismatch_is_expected_and_hears_of_it() -> None:
    made = agreements(3)
    made.arrive(0, Arrive(1, "barrier", b""))
    made.arrive(1, Arrive(1, "digest", b""))
    assert made.expects(2, 1)
    assert "different things" in made.arrive(2, Arrive(1, "barrier", b""))[0][1].error


@pytest.mark.parametrize(
    ("matter", "good", "bad"),
    [
        ("tensors", pack(Table("Net", [tensor()], Op.MEAN, False)), b"\xa1\xff"),
        ("digest", pack([("w", b"digest")]), b"\x91" * 100_000),
        ("join", pack([3]), pack([-3])),
    ],
)
def test_a_payload_that_cannot_be_read_is_named_to_all_with_its_rank(matter: str, good: bytes, bad: bytes) -> None:
    verdict = verdict_on(Arrive(1, matter, good), Arrive(1, matter, bad))
    assert verdict.error.startswith("what rank 1 brings to an agreement cannot be read: ")


def test_a_matter_that_the_coordinator_does_not_know_is_named_to_all() -> None:
    verdict = verdict_on(Arrive(1, "the weather", b""), Arrive(1, "the weather", b""))
    assert verdict.error.startswith("ranks come to 'the weather', which rank 0 does not know")


def test_ranks_with_different_numbers_of_tables_cannot_join() -> None:
    verdict = verdict_on(Arrive(1, "join", pack([3, 4])), Arrive(1, "join", pack([3])))
    assert verdict.error == "rank 0 has 2 tables of tensors, rank 1 has 1"
