"""Any tensors and any slice size: every element is in exactly one slice, at exactly one position."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_group import make_shape
from undertow.engine.coordinator.agreement import Agreements, Keys
from undertow.engine.coordinator.messages import Arrive, TableProposal
from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import FUSED_SHARE, MAX_FUSED_TENSORS, Cut, Placement, TensorSpec, cut
from undertow.sizing import Sizes

TENSORS = st.lists(
    st.builds(
        lambda elements, dtype: TensorSpec("t", (elements,), dtype, elements),
        st.one_of(st.integers(0, 20), st.integers(0, 3000)),
        st.sampled_from(DType),
    ),
    max_size=120,
)
SLICE_BYTES = st.integers(1, 600).map(lambda sixteens: 16 * sixteens)


@given(TENSORS, SLICE_BYTES, st.integers(1, 9))
def test_every_element_is_covered_exactly_once(tensors: list[TensorSpec], slice_bytes: int, shards: int) -> None:
    slices = cut(tensors, Cut(0, slice_bytes), op=Op.SUM, keep=False, placement=Placement(range(shards)))
    marks = [np.zeros(tensor.elements, int) for tensor in tensors]
    for item in slices:
        place = np.zeros(item.spec.elements, int)
        for part in item.ranges:
            assert part.offset + part.elements <= tensors[part.tensor].elements
            marks[part.tensor][part.offset : part.offset + part.elements] += 1
            place[part.at : part.at + part.elements] += 1
        assert (place == 1).all()
    assert all((mark == 1).all() for mark in marks)


@given(TENSORS, SLICE_BYTES, st.integers(1, 9))
def test_slices_keep_their_limits(tensors: list[TensorSpec], slice_bytes: int, shards: int) -> None:
    slices = cut(tensors, Cut(7, slice_bytes), op=Op.SUM, keep=False, placement=Placement(range(shards)))
    assert [item.spec.key for item in slices] == list(range(7, 7 + len(slices)))
    for item in slices:
        assert 0 < item.spec.size_bytes <= slice_bytes
        assert {tensors[part.tensor].dtype for part in item.ranges} == {item.spec.dtype}
        assert 0 <= item.spec.owner < shards
        if item.is_fused:
            assert len(item.ranges) <= MAX_FUSED_TENSORS
            assert item.spec.size_bytes <= slice_bytes // FUSED_SHARE


@given(st.lists(TENSORS, max_size=4), st.integers(64, 600).map(lambda sixteens: 16 * sixteens))
def test_keys_of_several_tables_never_meet(tables: list[list[TensorSpec]], slice_bytes: int) -> None:
    agreements, used = Agreements(make_shape(1, sizes=Sizes(fixed=slice_bytes)), Keys()), set()
    for sequence, tensors in enumerate(tables):
        payload = msgspec.msgpack.encode(TableProposal("Net", tensors, Op.COPY, False))
        [(_, verdict)] = agreements.arrive(0, Arrive(sequence, "tensors", payload))
        how = msgspec.msgpack.decode(verdict.payload, type=Cut)
        keys = {item.spec.key for item in cut(tensors, how, op=Op.COPY, keep=False, placement=Placement(range(1)))}
        assert not keys & used
        used |= keys
