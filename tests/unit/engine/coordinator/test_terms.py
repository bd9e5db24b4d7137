"""Terms of a call: slices that follow from them, and the difference between two ranks in words."""

from __future__ import annotations

import pytest

from tests.support.fake_group import make_shape
from undertow.engine.coordinator import terms
from undertow.engine.coordinator.terms import Disagreement, Route, Terms, find_difference, lay_out
from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import EVERYONE, Op
from undertow.engine.core.slicing import Cut, TensorSpec
from undertow.errors import Garbled


def summed(elements: int = 6, *, allows_absent: bool = True, details: str = "") -> Terms:
    tensors = [TensorSpec("x", (elements,), DType.FLOAT32, elements)]
    return Terms("allreduce", Route.SLICES, Op.SUM, tensors, details, allows_absent=allows_absent)


GATHER = Terms("allgather", Route.EVERYONE)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (GATHER, "ranks do different things in 'x': rank 0 calls allreduce, rank 1 allgather"),
        (summed(details="root 1"), "ranks 0 and 1 differ in allreduce 'x': root 0 against root 1"),
        (
            Terms("allreduce", Route.SLICES, Op.SUM, [], "root 0"),
            "ranks 0 and 1 differ in allreduce 'x': 1 tensors against 0",
        ),
        (
            Terms("allreduce", Route.SLICES, Op.MEAN, summed().tensors, "root 0"),
            "ranks 0 and 1 differ in allreduce 'x': SLICES SUM against SLICES MEAN",
        ),
    ],
)
def test_the_difference_is_named(other: Terms, words: str) -> None:
    found = find_difference("x", {0: summed(details="root 0"), 1: other})
    assert found == Disagreement(words, "x", ranks=(0, 1))
    assert find_difference("x", {0: other, 1: other}) is None


def test_a_differing_tensor_is_named_before_anything_else() -> None:
    found = find_difference("x", {4: summed(6, details="root 0"), 2: summed(7, details="root 1")})
    words = "ranks 2 and 4 differ in allreduce 'x': 'x' [7] float32 against 'x' [6] float32"
    assert found == Disagreement(words, "x", "x", (2, 4))
    error = found.make_error()
    assert (str(error), error.matter, error.tensor, error.ranks) == (words, "x", "x", (2, 4))


def test_calls_of_equal_sizes_can_use_the_same_keys_whatever_the_names_of_their_tensors() -> None:
    renamed = Terms("sum", Route.SLICES, Op.SUM, [TensorSpec("y", (2, 3), DType.FLOAT32, 6)])
    assert summed().signature == renamed.signature
    assert summed().signature != summed(7).signature
    assert summed().signature != Terms("allreduce", Route.SLICES, Op.MEAN, summed().tensors).signature
    assert GATHER.signature == Terms("x", Route.EVERYONE, tensors=summed().tensors).signature
    assert GATHER.signature != Terms("allgather", Route.EACH).signature


def test_successive_small_calls_go_to_different_shards() -> None:
    owners = [lay_out(summed(), Cut(key, 1040), make_shape(3))[0].spec.owner for key in (6, 7, 8, 9)]
    assert owners == [0, 1, 2, 0]


def test_each_route_has_its_slices() -> None:
    assert lay_out(Terms("barrier", Route.NOWHERE), Cut(7, 1040), make_shape(3)) == []
    [everyone] = lay_out(GATHER, Cut(7, 1040), make_shape(3))
    assert (everyone.spec.key, everyone.spec.owner, everyone.spec.op) == (7, EVERYONE, Op.GATHER)
    each = lay_out(Terms("alltoall", Route.EACH), Cut(7, 1040), make_shape(3))
    assert [(item.spec.key, item.spec.owner) for item in each] == [(7, 0), (8, 1), (9, 2)]
    cut = lay_out(summed(5000), Cut(7, 1040), make_shape(3))
    assert sum(item.spec.elements for item in cut) == 5000
    assert {item.spec.owner for item in cut} == {0, 1, 2}


def test_a_call_of_too_many_slices_is_refused_before_it_is_sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "MOST_SLICES", 4)
    assert len(lay_out(summed(3 * 256), Cut(7, 1024), make_shape(2))) == 3
    with pytest.raises(Garbled, match=r"a call with 8192 bytes of tensors in \d slices is not possible"):
        lay_out(summed(8 * 256), Cut(7, 1024), make_shape(2))
    assert lay_out(Terms("allgather", Route.EVERYONE, tensors=summed(1 << 20).tensors), Cut(7, 1024), make_shape(2))


def test_keys_beyond_what_a_frame_holds_are_refused() -> None:
    with pytest.raises(Garbled, match="is not possible"):
        lay_out(summed(elements=10**6), Cut((1 << 32) - 2, 1024), make_shape(2))
