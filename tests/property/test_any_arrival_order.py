"""Any order of arrival and any mix of empty contributions give the same bits as a plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Array, KeySpec, Op, Round

FLOATS = st.floats(-1e30, 1e30) | st.floats(-1.0, 1.0) | st.sampled_from([0.0, -0.0, float("inf")])


@st.composite
def contributions(draw: st.DrawFn) -> tuple[KeySpec, list[Array | None]]:
    dtype = draw(st.sampled_from([dtype for dtype in DType if dtype is not DType.BYTES]))
    op = draw(st.sampled_from(Op if dtype.is_float else [Op.SUM, Op.COPY]))
    elements = draw(st.integers(1, 4))
    numbers = st.lists(FLOATS if dtype.is_float else st.integers(-1000, 1000), min_size=elements, max_size=elements)
    values = draw(st.lists(st.none() | numbers, min_size=1, max_size=11))
    with np.errstate(all="ignore"):
        arrays = [None if value is None else np.array(value).astype(dtype.numpy) for value in values]
    return KeySpec(0, elements, dtype, op, 0), arrays


def plain(spec: KeySpec, arrays: list[Array | None]) -> Array | None:
    held = [array.astype(spec.dtype.accumulator) for array in arrays if array is not None]
    if not held:
        return None
    total = held[0]
    with np.errstate(all="ignore"):
        for array in held[1:] if spec.op is not Op.COPY else []:
            total = total + array
        if spec.op is Op.MEAN:
            total = total / total.dtype.type(len(arrays))
        return total.astype(spec.dtype.numpy)


@given(contributions(), st.randoms(use_true_random=False))
def test_any_order_of_arrival_gives_the_bits_of_the_plain_loop(case, random) -> None:  # type: ignore[no-untyped-def]
    spec, arrays = case
    expected = plain(spec, arrays)
    order = random.sample(range(len(arrays)), len(arrays))
    round_ = Round(spec, len(arrays), lambda array: array.fill(99))  # released memory is nobody's
    for rank in order:
        array = arrays[rank]
        round_.add(rank, None if array is None else array.copy(), is_owned=random.random() < 0.7)
    into = np.full(spec.elements, 7).astype(spec.dtype.numpy)
    outcome = round_.finish(into=into)
    if expected is None:
        assert outcome.array is None
        return
    assert outcome.array is not None
    assert outcome.array.dtype == spec.dtype.numpy
    assert outcome.array.tobytes() == expected.tobytes() == into.tobytes()
