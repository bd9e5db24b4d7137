"""Stage 1 for embeddings: the rows that a batch has touched, instead of a gradient that is zero elsewhere.

In: an embedding's forward and backward.  Out: the numbers of its touched rows (K) and their gradients
(K x D).  torch makes just that where an embedding is `sparse`; so here it is, inside of the layer only,
and whoever wants the gradient as it always was gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from undertow.torch.pieces import Column
from undertow.torch.sources import Ask, Parts, Source
from undertow.torch.swapping import Swapped, is_plain_call

Scatter = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Rows:
    """The form of an embedding's weight; `rebuild` makes its gradient in a way of its own."""

    def __init__(self, weight: torch.nn.Parameter, *, is_sparse: bool, rebuild: Scatter | None = None) -> None:
        self._weight = weight
        self._is_sparse = is_sparse  # the gradient, in the end
        self._rebuild = rebuild

    @property
    def columns(self) -> Sequence[Column]:
        return Column(1, torch.int64), Column(self._weight.shape[1])

    def join(self, parts: Sequence[Parts]) -> Parts:
        numbers, values = (torch.cat(column) for column in zip(*parts, strict=True))
        # Each row once: fewer bytes, and its own sum does not depend on who adds up.
        size = (self._weight.shape[0], values.shape[1])
        joined = torch.sparse_coo_tensor(numbers.view(1, -1), values, size, check_invariants=False).coalesce()
        return joined.indices().view(-1, 1), joined.values()

    def split(self, gradient: torch.Tensor) -> Parts | None:
        if not gradient.is_sparse or gradient.sparse_dim() != 1:
            return None
        return gradient._indices().view(-1, 1), gradient._values()

    def make(self, parts: Sequence[Parts], workers: int) -> torch.Tensor:
        device, (height, width) = self._weight.device, self._weight.shape
        dtype = torch.promote_types(self._weight.dtype, torch.float32)
        counts = [len(numbers) for numbers, _ in parts]
        numbers = torch.cat([torch.empty(0, dtype=torch.int64), *(one.view(-1) for one, _ in parts)]).to(device)
        if self._rebuild is not None:
            return self._rebuild(numbers, torch.cat([values for _, values in parts]))
        touched, places = torch.unique(numbers, return_inverse=True)
        sums = torch.zeros(len(touched), width, dtype=dtype, device=device)
        # One worker after the other, as the shards add: each has every row once.
        for where, (_, values) in zip(places.split(counts), parts, strict=True):
            sums.index_add_(0, where, values.to(device, dtype))
        sums.div_(workers)
        if self._is_sparse:
            size = (height, width)
            return torch.sparse_coo_tensor(touched.view(1, -1), sums, size, is_coalesced=True, check_invariants=False)
        return torch.zeros(height, width, dtype=dtype, device=device).index_copy_(0, touched, sums)


class RowEmbedding(Swapped):
    """Mixed into an embedding's own class."""

    weight: torch.nn.Parameter
    padding_idx: int | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not is_plain_call(input) or not self.feeds(self.weight):
            plain: torch.Tensor = super().forward(input)  # type: ignore[misc]
            return plain
        weight = _Watched.apply(self.weight, self.source)  # type: ignore[no-untyped-call]
        # Flat: torch fails to leave rows out of those of a single number.
        rows = functional.embedding(input.reshape(-1), weight, self.padding_idx, sparse=True)
        return rows.view(*input.shape, weight.shape[1])


class RowEmbeddingBag(Swapped):
    """The same for bags of them."""

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
        if not is_plain_call(input) or not self.feeds(self.weight):
            plain: torch.Tensor = super().forward(input, offsets, per_sample_weights)  # type: ignore[misc]
            return plain
        weight = _Watched.apply(self.weight, self.source)  # type: ignore[no-untyped-call]
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
    """The weight as it is; its gradient comes by as rows."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, source: Source) -> torch.Tensor:
        ctx.source = source
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[Any, ...]:
        gradient, source = outputs[0], ctx.source
        parts = source.form.split(gradient)
        asked = Ask.GRADIENT if parts is None or torch.is_grad_enabled() else source.ask()
        if asked is Ask.PARTS:
            source.give(parts)
            return None, None
        dense = gradient.to_dense()
        if asked is Ask.BOTH:
            source.keep(parts, dense)
        return dense, None
