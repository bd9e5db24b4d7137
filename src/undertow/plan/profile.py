"""The profile of a model: its layers in the order of the forward pass, with their times.

In: figures, measured in the first steps or published.  Out: a `Profile`.
"""

from __future__ import annotations

import enum
import math

import msgspec


class LayerKind(enum.Enum):
    """Kind of a layer, which decides which schemes are possible."""

    CONV = "conv"
    LINEAR = "linear"
    LSTM = "lstm"
    EMBEDDING = "embedding"
    OTHER = "other"


class TensorProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter whose gradient is synchronised.

    A linear layer's weight has the shape M x N, and `rows` is K, the rows of its activations per worker and step
    (samples, or tokens).  For an embedding `rows` counts the rows that a worker touches in a step.
    """

    name: str
    shape: tuple[int, ...]
    kind: LayerKind = LayerKind.OTHER
    rows: float = 0.0
    itemsize: int = 4
    product_s: float | None = None  # measured time to multiply one worker's factors; if None, from the cluster's rate
    row_itemsize: int = 4  # bytes per element of the factors, half as many under autocast
    can_reduce: bool = True  # whether torch's process group sums it without loss
    obstacle: str = ""  # why it can only be dense although its layer suggests otherwise

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.itemsize


class LayerProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Layer whose tensors are used together."""

    name: str
    tensors: tuple[TensorProfile, ...]
    forward_s: float
    backward_s: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of a model, with the times of one worker without a network."""

    layers: tuple[LayerProfile, ...]

    @property
    def tensors(self) -> list[TensorProfile]:
        return [tensor for layer in self.layers for tensor in layer.tensors]

    @property
    def compute_s(self) -> float:
        return sum(layer.forward_s + layer.backward_s for layer in self.layers)
