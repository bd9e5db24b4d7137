"""Memory for gradients that cost nothing to make.

In: a shape.  Out: a tensor that nobody else shares, as fresh from the allocator but with
values in it.  A block is lent out until the tensor and all its views are gone, then lent
again as it was left: so gradients hold what the last averaging wrote into them, every one
a plain number, and neither filling nor page faults disturb the measurement.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch


class GradientMemory:
    """The blocks of one parameter; there is a second one only while the first is lent."""

    def __init__(self, shape: Sequence[int], first_value: float) -> None:
        self._shape = tuple(shape)
        self._first_value = first_value
        self._blocks: list[_Block] = []

    def lend(self) -> torch.Tensor:
        for block in self._blocks:
            if block.is_free:
                return block.lend()
        self._blocks.append(_Block(np.full(self._shape, self._first_value, np.float32)))
        return self._blocks[-1].lend()

    def __reduce__(self) -> tuple[type[GradientMemory], tuple[object, ...]]:
        return GradientMemory, (self._shape, self._first_value)  # a copied model lends memory of its own


class _Block:
    def __init__(self, array: npt.NDArray[np.float32]) -> None:
        self._array = array
        self._borrower: weakref.ref[npt.NDArray[np.float32]] | None = None

    @property
    def is_free(self) -> bool:
        return self._borrower is None or self._borrower() is None

    def lend(self) -> torch.Tensor:
        view = self._array.view()  # torch's storage keeps the view alive, and nothing else does
        self._borrower = weakref.ref(view)
        return torch.from_numpy(view)
