"""Element types, their codes on the wire and how each is summed.

16-bit floats are summed in float32 and rounded once, so the number of workers does not cost precision.
"""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from undertow.errors import ConfigError


class DType(enum.IntEnum):
    """Element type, with its code on the wire."""

    BYTES = 0  # never summed, only copied: buffers, flags, anything
    FLOAT64 = 1
    FLOAT32 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    INT64 = 5
    INT32 = 6

    @property
    def numpy(self) -> np.dtype[Any]:
        return _NUMPY[self]

    @property
    def accumulator(self) -> np.dtype[Any]:
        return _ACCUMULATOR.get(self, _NUMPY[self])

    @property
    def is_float(self) -> bool:
        return self in _FLOATS


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.BYTES: np.dtype(np.uint8),
    DType.FLOAT64: np.dtype(np.float64),
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DType.INT64: np.dtype(np.int64),
    DType.INT32: np.dtype(np.int32),
}
_ACCUMULATOR: dict[DType, np.dtype[Any]] = {DType.FLOAT16: np.dtype(np.float32), DType.BFLOAT16: np.dtype(np.float32)}
_FLOATS = frozenset({DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})


def dtype_of(dtype: DTypeLike) -> DType:
    """Return the code of a numpy type; raise `ConfigError` for one that cannot be summed."""
    wanted = np.dtype(dtype)
    for code, known in _NUMPY.items():
        if code is not DType.BYTES and known == wanted:
            return code
    known_names = ", ".join(str(known) for code, known in _NUMPY.items() if code is not DType.BYTES)
    raise ConfigError(f"arrays of {wanted} cannot be summed; use one of {known_names}")
