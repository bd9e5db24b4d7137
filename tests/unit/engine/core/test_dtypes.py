"""Element types: each has a code, and 16-bit floats are summed in 32 bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from undertow.engine.core.dtypes import DType, dtype_of
from undertow.errors import ConfigError


def test_codes_on_the_wire_never_change() -> None:
    codes = {"BYTES": 0, "FLOAT64": 1, "FLOAT32": 2, "FLOAT16": 3, "BFLOAT16": 4, "INT64": 5, "INT32": 6}
    assert {dtype.name: int(dtype) for dtype in DType} == codes


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype is not DType.BYTES])
def test_a_numpy_type_and_its_code_belong_together(dtype: DType) -> None:
    assert dtype_of(dtype.numpy) is dtype


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_16_bit_floats_are_summed_in_float32(dtype: DType) -> None:
    assert dtype.accumulator == np.float32
    assert dtype.numpy.itemsize == 2


@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT32, DType.INT64, DType.INT32])
def test_wider_types_are_summed_as_they_are(dtype: DType) -> None:
    assert dtype.accumulator == dtype.numpy


def test_floats_are_known_as_floats() -> None:
    assert {dtype for dtype in DType if dtype.is_float} == {
        DType.FLOAT64,
        DType.FLOAT32,
        DType.FLOAT16,
        DType.BFLOAT16,
    }


def test_bfloat16_is_that_of_ml_dtypes() -> None:
    assert DType.BFLOAT16.numpy == ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.complex64, "U3", object])
def test_types_that_cannot_be_summed_are_refused_with_a_list_of_those_that_can(dtype: object) -> None:
    with pytest.raises(ConfigError, match="cannot be summed; use one of float64, float32, float16, bfloat16, int64"):
        dtype_of(dtype)  # type: ignore[arg-type]
