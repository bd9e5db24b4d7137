"""What `--scale` does to shapes: every byte count is divided by the scale, every time stays.

In: a layer of the zoo.  Out: the shapes of its replayed tensors.
A matrix M x N and its K activation rows shrink by the square root in each direction, so
that M N (the gradient) and K (M + N) (the factors) are both divided by the scale.  An
embedding loses rows and tokens, never columns.  Anything else becomes a flat vector.
"""

from __future__ import annotations

import math

from undertow.zoo import Kind, Layer, Tensor


def scale_shape(layer: Layer, tensor: Tensor, scale: float) -> tuple[int, ...]:
    """The replayed shape; never empty."""
    if layer.kind is Kind.LINEAR:
        return tuple(_divide(length, math.sqrt(scale)) for length in tensor.shape)
    if layer.kind is Kind.EMBEDDING:
        return (_divide(tensor.shape[0], scale), *tensor.shape[1:])
    return (_divide(tensor.size, scale),)


def scale_rows(layer: Layer, *, batch: int, scale: float) -> int:
    """How many activation rows (samples or tokens) pass through a replayed layer in one step."""
    divisor = math.sqrt(scale) if layer.kind is Kind.LINEAR else scale
    return _divide(batch * layer.vectors, divisor)


def _divide(length: int, divisor: float) -> int:
    return max(1, round(length / divisor))
