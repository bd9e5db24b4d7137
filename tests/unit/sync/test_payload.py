"""The byte format of one worker's factors: offsets of arrays, and refused payloads."""

from __future__ import annotations

import numpy as np
import pytest

from undertow.engine.core.dtypes import DType
from undertow.errors import UndertowError
from undertow.sync.payload import describe, find_starts, split, unpack
from undertow.sync.slot import NO_FACTORS, Field

FIELDS = (Field(5), Field(3))
FLOAT = np.dtype(np.float32)


def test_every_array_is_aligned_for_any_type() -> None:
    assert find_starts([10, 6, 60]) == [0, 16, 32, 96]
    assert find_starts([]) == [0]


def test_a_descriptor_contains_rows_and_types() -> None:
    array = np.arange(16 * 5, dtype=np.uint8)
    found = unpack([array], describe(2, DType.FLOAT16, has_whole=True), FIELDS, (3, 5), np.dtype(np.float16))
    assert [one.shape for one in found.factors] == [(2, 5), (2, 3)]
    assert found.whole is not None
    assert found.whole.shape == (3, 5)
    assert {one.dtype for one in (*found.factors, found.whole)} == {np.dtype(np.float16)}


def test_arrays_share_the_memory_of_a_single_chunk() -> None:
    array = np.zeros(48, np.uint8)
    found = unpack([array], describe(1, DType.FLOAT32, has_whole=False), (Field(5), Field(1)), (1, 5), FLOAT)
    assert found.factors[0].base is not None
    array[:] = 255
    assert np.isnan(found.factors[0]).all()


def test_no_gradient_differs_from_a_gradient_of_zeros() -> None:
    assert unpack([None], 0, FIELDS, (3, 5), FLOAT) is NO_FACTORS
    zeros = unpack([None], describe(0, None, has_whole=False), FIELDS, (3, 5), FLOAT)
    assert zeros.is_present
    assert zeros.factors == ()


def test_chunks_cover_everything_and_may_be_empty() -> None:
    array = np.arange(10, dtype=np.uint8)
    for count in (1, 3, 10, 13):
        chunks = split(array, count)
        assert len(chunks) == count
        assert [byte for chunk in chunks if chunk is not None for byte in chunk] == list(range(10))
    assert split(None, 3) == [None] * 3


def test_bytes_that_do_not_fit_the_descriptor_are_refused() -> None:
    with pytest.raises(UndertowError, match="112 bytes where its descriptor 40201 says 128"):
        unpack([np.zeros(112, np.uint8)], describe(4, DType.FLOAT32, has_whole=False), FIELDS, (3, 5), FLOAT)
