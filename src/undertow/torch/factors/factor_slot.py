"""Factors of one weight's gradient: converts a layer's tensors to bytes, and all workers' bytes to the mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from undertow.engine.core.rounds import Array
from undertow.sync.payload import NO_GRADIENT, describe, find_starts
from undertow.sync.slot import Field, Payload, WorkerFactors
from undertow.sync.syncers import all_ready
from undertow.torch.factors.collector import FactorCollector
from undertow.torch.factors.layers import Layer
from undertow.torch.slots.device import host_memory
from undertow.torch.slots.slot import TorchSlot
from undertow.torch.slots.tensors import DTYPES, as_array, as_tensor

SAMPLED = 256  # elements at the beginning, in the middle and at the end of a gradient


class TorchFactorSlot:
    """The slot of a weight whose layer hands over the factors of its gradient."""

    def __init__(self, slot: TorchSlot, layer: Layer, collector: FactorCollector) -> None:
        self.collector = collector
        self.take_factors = collector.take
        self.shape: tuple[int, ...] = tuple(slot.parameter.shape)
        self.dtype: np.dtype[Any] = DTYPES[slot.dtype].numpy
        self.fields: Sequence[Field] = layer.form.fields
        self.replace = slot.replace
        self.allocate = slot.allocate
        self.as_array = slot.as_array
        self._slot = slot
        self._layer = layer

    def attach(self) -> None:
        self._layer.attach(self.collector)

    def detach(self) -> None:
        self._layer.detach()
        self.collector.forget()

    def pack(self, factors: WorkerFactors[torch.Tensor]) -> Payload:
        if not factors.is_present:
            return NO_GRADIENT
        parts, whole = factors.factors, factors.whole
        rows, dtype = (len(parts[0]), DTYPES[parts[-1].dtype]) if parts else (0, None)
        descriptor = describe(rows, dtype, has_whole=whole is not None)
        tensors = [*parts, whole] if whole is not None else parts
        starts = find_starts([tensor.nbytes for tensor in tensors])
        if not starts[-1]:
            return Payload(None, descriptor)
        memory = host_memory(starts[-1], torch.uint8, self._slot.parameter.device)
        copies = []
        for tensor, start in zip(tensors, starts, strict=False):
            target = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            copies.append(self._slot.copier.out(tensor, target))
        return Payload(memory.numpy(), descriptor, all_ready(copies))

    def split_rows(self, factors: WorkerFactors[torch.Tensor], rows: range) -> WorkerFactors[torch.Tensor]:
        own = slice(rows.start, rows.stop)
        deltas = tuple(delta[:, own] for delta in factors.factors[1:])
        return factors._replace(factors=deltas, whole=None if factors.whole is None else factors.whole[own])

    def combine(self, workers: Sequence[WorkerFactors[Array]]) -> torch.Tensor | None:
        return self.collector.combine([_as_tensors(one) for one in workers], self._slot.dtype)

    def multiply(
        self, first: Sequence[WorkerFactors[Array]], others: Sequence[WorkerFactors[Array]], rows: range
    ) -> Array:
        dtype, workers = self._slot.dtype, len(others)
        wide = torch.promote_types(dtype, torch.float32)
        result = torch.zeros(len(rows), self.shape[1], dtype=wide)
        deltas = [_as_tensors(one) for one in others]
        joined = [
            [one.factors[0].to(wide) for one in column if one.factors]
            for column in (deltas, [_as_tensors(one) for one in first])
        ]
        if joined[0]:
            left, right = (torch.cat(column) for column in joined)
            torch.addmm(result, left.t(), right, beta=0, alpha=1 / workers, out=result)
        for one in deltas:
            if one.whole is not None:
                result.add_(one.whole, alpha=1 / workers)
        return as_array(result.to(dtype), DTYPES[dtype])

    def sample(self, gradient: torch.Tensor) -> bytes:
        values = gradient._values() if gradient.is_sparse else gradient
        flat = values.reshape(-1)
        starts = (0, flat.numel() // 2, max(0, flat.numel() - SAMPLED))
        samples = torch.cat([flat[start : start + SAMPLED] for start in starts]).cpu()
        return samples.view(torch.uint8).numpy().tobytes()

    def replace_from(self, memory: torch.Tensor) -> None:
        self._slot.replace(memory.view(self.shape).to(self._slot.parameter.device))


def _as_tensors(one: WorkerFactors[Array]) -> WorkerFactors[torch.Tensor]:
    whole = None if one.whole is None else as_tensor(one.whole)
    return WorkerFactors(tuple(as_tensor(array) for array in one.factors), whole, one.is_present)
