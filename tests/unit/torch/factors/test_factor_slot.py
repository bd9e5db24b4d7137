"""A worker's share of a gradient is packed into bytes and unpacked from any number of chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from undertow.sync.payload import split, unpack
from undertow.sync.slot import NO_FACTORS, Payload, WorkerFactors
from undertow.torch.factors.collector import FactorCollector, Wanted
from undertow.torch.factors.factor_slot import TorchFactorSlot, _as_tensors
from undertow.torch.factors.layers import Layer, make_layer
from undertow.torch.slots.device import HostCopier
from undertow.torch.slots.slot import TorchSlot

TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
Tensors = WorkerFactors[torch.Tensor]


def make_slot(module: nn.Module | None = None, dtype: torch.dtype = torch.float32) -> TorchFactorSlot:
    """Return the slot of a weight of 3 x 5."""
    layer = make_layer((module or nn.Linear(5, 3)).to(dtype))
    assert isinstance(layer, Layer)
    slot = TorchSlot("weight", layer.weight, HostCopier(), is_sparse=False)
    return TorchFactorSlot(slot, layer, FactorCollector(layer.weight, layer.form, lambda: Wanted.FACTORS))


def unpack_here(payload: Payload, slot: TorchFactorSlot, chunks: int = 1) -> Tensors:
    return _as_tensors(unpack(split(payload.array, chunks), payload.descriptor, slot.fields, slot.shape, slot.dtype))


def make_factors(rows: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    return tuple(torch.randn(rows, width, generator=generator).to(dtype) for width in (5, 3))


def check_same(one: Tensors, other: Tensors) -> None:
    assert one.is_present == other.is_present
    assert (one.whole is None) == (other.whole is None)
    for ours, theirs in zip((*one.factors, one.whole), (*other.factors, other.whole), strict=True):
        if ours is not None and theirs is not None:
            assert ours.dtype is theirs.dtype
            assert ours.shape == theirs.shape
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("chunks", [1, 2, 3, 7, 500])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_factors_and_a_whole_gradient_survive_packing(rows: int, dtype: torch.dtype, chunks: int) -> None:
    slot = make_slot()
    for whole in (None, torch.randn(3, 5)):
        factors = WorkerFactors(make_factors(rows, dtype), whole)
        check_same(unpack_here(slot.pack(factors), slot, chunks), factors)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_keep_the_type_of_their_numbers(dtype: torch.dtype, chunks: int) -> None:
    slot = make_slot(nn.Embedding(3, 5), dtype)
    rows = (torch.tensor([[2**40], [0], [7]]), torch.randn(3, 5).to(dtype))
    factors = WorkerFactors(rows, torch.randn(3, 5).to(dtype))
    check_same(unpack_here(slot.pack(factors), slot, chunks), factors)


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("module", [nn.Linear(5, 3), nn.Embedding(3, 5)])
def test_factors_without_rows_are_present(module: nn.Module, chunks: int) -> None:
    slot = make_slot(module)
    types = [None if field.dtype is None else torch.int64 for field in slot.fields]
    empty = tuple(
        torch.empty(0, field.width, dtype=dtype or torch.float32)
        for field, dtype in zip(slot.fields, types, strict=True)
    )
    for whole in (None, torch.randn(3, 5)):
        payload = slot.pack(WorkerFactors(empty, whole))
        assert (payload.array is None) == (whole is None)
        check_same(unpack_here(payload, slot, chunks), WorkerFactors(empty, whole))


def test_a_gradient_without_factors_differs_from_no_gradient() -> None:
    slot = make_slot()
    whole: Tensors = WorkerFactors((), torch.randn(3, 5))
    check_same(unpack_here(slot.pack(whole), slot, chunks=2), whole)
    zero = slot.pack(WorkerFactors())  # present, but zero
    assert zero.array is None
    check_same(unpack_here(zero, slot), WorkerFactors())
    nothing = slot.pack(NO_FACTORS)
    assert nothing.array is None
    assert not unpack_here(nothing, slot).is_present


def test_numbers_that_are_not_finite_keep_their_bits() -> None:
    slot = make_slot()
    deltas = torch.tensor([[float("nan"), float("inf"), -float("inf")]])
    found = unpack_here(slot.pack(WorkerFactors((torch.zeros(1, 5), deltas))), slot)
    assert torch.equal(found.factors[1].view(torch.int32), deltas.view(torch.int32))


def test_a_payload_is_a_copy_of_any_layout() -> None:
    slot = make_slot()
    activations = torch.arange(10.0).reshape(5, 2).t()  # not contiguous
    deltas = torch.ones(1, 1).expand(2, 3)
    payload = slot.pack(WorkerFactors((activations, deltas)))
    expected = activations.clone()
    activations.zero_()
    check_same(unpack_here(payload, slot), WorkerFactors((expected, torch.ones(2, 3))))


@pytest.mark.parametrize("dtype", TYPES)
def test_shards_compute_the_same_rows_as_all_ranks(dtype: torch.dtype) -> None:
    slot = make_slot(dtype=dtype)
    workers = [
        WorkerFactors(make_factors(2, dtype)),
        WorkerFactors(make_factors(3, dtype), torch.randn(3, 5).to(dtype)),
        NO_FACTORS,
    ]
    received = [
        unpack([payload.array], payload.descriptor, slot.fields, slot.shape, slot.dtype)
        for payload in map(slot.pack, workers)
    ]
    expected = slot.combine(received)
    assert expected is not None
    rows = []
    for span in (range(2), range(2, 3)):
        first = [one._replace(factors=one.factors[:1], whole=None) for one in received]
        columns = slice(span.start, span.stop)
        others = [
            one._replace(
                factors=tuple(np.ascontiguousarray(delta[:, columns]) for delta in one.factors[1:]),
                whole=None if one.whole is None else one.whole[columns],
            )
            for one in received
        ]
        rows.append(slot.multiply(first, others, span))
    found = torch.cat([_as_tensors(WorkerFactors((row,))).factors[0] for row in rows]).view(3, 5)
    torch.testing.assert_close(found, expected)
