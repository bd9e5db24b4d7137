"""Stage 1 for embeddings: the rows that a batch has touched, instead of a gradient that is zero elsewhere.

In: an embedding's forward and backward.  Out: the numbers of its touched rows (K) and their gradients (K x D).
Torch computes exactly these for a `sparse` embedding.  So the layer computes a sparse gradient internally, which is
made dense again where the gradient itself is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from undertow.plan.profile import LayerKind
from undertow.sync.slot import Field
from undertow.torch.factors.collector import FactorCollector, Factors
from undertow.torch.factors.swapping import Swapped, is_eager_call

Scatter = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class EmbeddingForm:
    """The form of an embedding's weight.  `rebuild`, if given, computes the gradient from the joined rows."""

    kind = LayerKind.EMBEDDING

    def __init__(self, weight: torch.nn.Parameter, *, is_sparse: bool, rebuild: Scatter | None = None) -> None:
        self._weight = weight
        self._is_sparse = is_sparse  # whether the user expects a sparse gradient
        self._rebuild = rebuild

    @property
    def fields(self) -> Sequence[Field]:
        return Field(1, np.dtype(np.int64)), Field(self._weight.shape[1])

    def join(self, factors: Sequence[Factors]) -> Factors:
        numbers, values = (torch.cat(column) for column in zip(*factors, strict=True))
        # Each row once: fewer bytes, and the sum of a row is the same on every rank.
        size = (self._weight.shape[0], values.shape[1])
        joined = torch.sparse_coo_tensor(numbers.view(1, -1), values, size, check_invariants=False).coalesce()
        return joined.indices().view(-1, 1), joined.values()

    def split(self, gradient: torch.Tensor) -> Factors | None:
        if not gradient.is_sparse or gradient.sparse_dim() != 1:
            return None
        return gradient._indices().view(-1, 1), gradient._values()

    def make(self, factors: Sequence[Factors], workers: int) -> torch.Tensor:
        device, size = self._weight.device, self._weight.shape
        dtype = torch.promote_types(self._weight.dtype, torch.float32)
        counts = [len(numbers) for numbers, _ in factors]
        numbers = torch.cat([torch.empty(0, dtype=torch.int64), *(one.view(-1) for one, _ in factors)]).to(device)
        if self._rebuild is not None:
            return self._rebuild(numbers, torch.cat([values for _, values in factors]))
        touched, positions = torch.unique(numbers, return_inverse=True)
        sums = torch.zeros(len(touched), size[1], dtype=dtype, device=device)
        # Worker by worker, in the order in which shards add; each worker has every row at most once.
        for where, (_, values) in zip(positions.split(counts), factors, strict=True):
            sums.index_add_(0, where, values.to(device, dtype))
        sums.div_(workers)
        if self._is_sparse:
            return torch.sparse_coo_tensor(touched.view(1, -1), sums, size, is_coalesced=True, check_invariants=False)
        return torch.zeros(size, dtype=dtype, device=device).index_copy_(0, touched, sums)


class RowEmbedding(Swapped):
    """Mixin for an embedding's own class."""

    weight: torch.nn.Parameter
    padding_idx: int | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not is_eager_call(input) or not self.feeds(self.weight):
            output: torch.Tensor = super().forward(input)  # type: ignore[misc]
            return output
        weight = _Watched.apply(self.weight, self._undertow_collector)  # type: ignore[no-untyped-call]
        # Flat: torch fails to leave out padding rows of a single number.
        rows = functional.embedding(input.reshape(-1), weight, self.padding_idx, sparse=True)
        return rows.view(*input.shape, weight.shape[1])


class RowEmbeddingBag(Swapped):
    """Mixin for the own class of an embedding bag."""

    weight: torch.nn.Parameter
    mode: str
    include_last_offset: bool
    padding_idx: int | None

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not is_eager_call(input) or not self.feeds(self.weight):
            output: torch.Tensor = super().forward(input, offsets, per_sample_weights)  # type: ignore[misc]
            return output
        weight = _Watched.apply(self.weight, self._undertow_collector)  # type: ignore[no-untyped-call]
        return functional.embedding_bag(
            input,
            weight,
            offsets,
            mode=self.mode,
            sparse=True,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )


class _Watched(torch.autograd.Function):
    """The identity on the weight, whose backward receives the weight's sparse gradient."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, collector: FactorCollector) -> torch.Tensor:
        ctx.collector = collector
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[Any, ...]:
        gradient, collector = outputs[0], ctx.collector
        rows = collector.form.split(gradient)
        return gradient.to_dense() if rows is None else collector.hand_over(rows, gradient.to_dense), None
