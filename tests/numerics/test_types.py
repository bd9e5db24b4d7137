"""Gradients of every float type become their mean, and 16-bit ones are rounded only once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import undertow
import undertow.torch
from tests.support.workers import run_workers

# Below and above the size at which tensors are no longer fused.
SMALL, LARGE = (5,), (700, 500)


class Scaled(nn.Module):
    """A module whose gradient is its input."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape, dtype=dtype))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return (self.weight * value).sum()


def gradient_of(rank: int, shape: tuple[int, ...], values: list[torch.Tensor]) -> torch.Tensor:
    value = values[rank]
    model = undertow.torch.DistributedDataParallel(Scaled(shape, value.dtype))
    output = model(value.expand(shape))
    (output.real if value.is_complex() else output).backward()
    gradient = model.module.weight.grad
    assert gradient.dtype is value.dtype
    assert (gradient == gradient.reshape(-1)[0]).all()
    return gradient.reshape(-1)[0].clone()


@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_this_type_are_averaged(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = [torch.tensor(number, dtype=dtype) for number in (0.5, 1.0, 3.0)]
    for gradient in run_workers(3, gradient_of, shape, values):
        assert gradient == torch.tensor(1.5, dtype=dtype)


@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_gradients_are_averaged(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = [torch.tensor(number, dtype=dtype) for number in (1 + 2j, 3 - 6j)]
    for gradient in run_workers(2, gradient_of, shape, values):
        assert gradient == torch.tensor(2 + 2j, dtype=dtype)  # the conjugate of 2 - 2j


@pytest.mark.parametrize(("dtype", "large"), [(torch.float16, 2048.0), (torch.bfloat16, 256.0)])
def test_16_bit_gradients_are_summed_in_32_bits(dtype: torch.dtype, large: float) -> None:
    # In 16 bits `large` + 1 is `large`, so adding one by one would lose both ones.
    values = [torch.tensor(number, dtype=dtype) for number in (large, 1.0, 1.0, 2.0)]
    assert torch.tensor(large, dtype=dtype) + 1 == large
    for gradient in run_workers(4, gradient_of, SMALL, values):
        assert gradient == torch.tensor((large + 4) / 4, dtype=dtype) != torch.tensor((large + 2) / 4, dtype=dtype)


def test_a_16_bit_sum_that_would_overflow_does_not() -> None:
    values = [torch.tensor(60000.0, dtype=torch.float16)] * 2
    assert run_workers(2, gradient_of, SMALL, values) == [60000.0, 60000.0]


class Conjugated(Scaled):
    """A module whose gradient is a lazy conjugate, which differs from its memory."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return (torch.view_as_real(self.weight.conj().resolve_conj()) * torch.view_as_real(value)).sum()


def conjugated_gradient_of(rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    model = undertow.torch.DistributedDataParallel(Conjugated(shape, torch.complex64))
    model(torch.full(shape, 2 + 2j if rank else 4j)).backward()
    gradient = model.module.weight.grad
    assert (gradient == gradient.reshape(-1)[0]).all()
    return gradient.reshape(-1)[0].clone()


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_conjugated_gradients_are_averaged(shape: tuple[int, ...]) -> None:
    assert run_workers(2, conjugated_gradient_of, shape) == [1 - 3j, 1 - 3j]


def gradient_of_another_type(rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    module = Scaled(shape, torch.bfloat16)
    module.weight.grad_dtype = torch.float32
    model = undertow.torch.DistributedDataParallel(module)
    outputs = model(torch.tensor(256.0 if rank else 1.0, dtype=torch.bfloat16))
    (outputs * (1 if rank else 0.5)).backward()
    assert (module.weight.grad == module.weight.grad.reshape(-1)[0]).all()
    return module.weight.grad.reshape(-1)[0].clone()


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has one type for both")
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_gradients_may_be_of_another_type_than_their_parameters(shape: tuple[int, ...]) -> None:
    for gradient in run_workers(2, gradient_of_another_type, shape):
        assert gradient.dtype is torch.float32
        assert gradient == 128.25  # a bfloat16 cannot hold this


# Odd numbers of elements before and between the types, and buffers that are only copied.
TYPES = (
    torch.float32,
    torch.complex64,
    torch.float16,
    torch.bfloat16,
    torch.complex128,
    torch.float64,
    torch.complex64,
    torch.float32,
    torch.complex128,
)


class Mixed(nn.Module):
    """Parameters of all types, whose gradients are numbers that every type can represent."""

    def __init__(self, types: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        self.numbers = nn.ParameterList()
        for place, dtype in enumerate(types):
            for elements in (1, 3, 2 * place + 1):
                self.numbers.append(nn.Parameter(torch.ones(elements, dtype=dtype)))
        self.linear = nn.Linear(3, 3)
        self.register_buffer("flags", torch.ones(5, dtype=torch.int8))
        self.register_buffer("phase", torch.ones(3, dtype=torch.complex64))
        self.register_buffer("odd", torch.ones(1, dtype=torch.int8))
        self.register_buffer("wave", torch.ones(1, dtype=torch.complex128))

    def forward(self, factor: float) -> torch.Tensor:
        total = self.linear(torch.ones(1, 3) * factor).sum().double()
        for place, number in enumerate(self.numbers):
            if number.is_complex():
                pairs = torch.view_as_real(number * (factor * (place % 7)))
                total = total + pairs[:, 0].sum() + 2 * pairs[:, 1].sum()
            else:
                total = total + (number * (factor * (place % 7))).sum().double()
        return total


def check_mixed(rank: int, types: tuple[torch.dtype, ...]) -> None:
    for plan in ("dense", "factors", "factors-to-shard", "auto"):
        for overlaps in (False, True):
            module = Mixed(types)
            if rank:
                for buffer in module.buffers():
                    buffer.zero_()
            optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
            if overlaps:
                model, optimizer = undertow.torch.parallelize(module, optimizer, plan=plan)
            else:
                model = undertow.torch.DistributedDataParallel(module, plan=plan)
            assert all((buffer == 1).all() for buffer in module.buffers())
            for _ in range(3):
                optimizer.zero_grad()
                model(2.0 * (rank + 1)).backward()
                for place, number in enumerate(module.numbers):
                    mean = 3.0 * (place % 7) * (1 + 2j if number.is_complex() else 1)
                    assert number.grad.dtype is number.dtype
                    assert (number.grad == mean).all(), (plan, overlaps, place, number.dtype, number.grad, mean)
                optimizer.step()


def test_types_may_be_mixed_at_any_offset() -> None:
    run_workers(2, check_mixed, TYPES)
    run_workers(2, check_mixed, TYPES[::-1])
