"""Slices follow the link in mid-training, on all ranks in the same pass, and change no bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import undertow
from tests.support.rates import set_rate
from tests.support.workers import run_workers
from undertow.plan.replanner import PASSES
from undertow.torch import DistributedDataParallel, flush, parallelize, verify_replicas

LIMITS = {"UNDERTOW_SMALLEST_SLICE": "1024", "UNDERTOW_LARGEST_SLICE": "16384"}
RATES = (None, 1e6, 8e6, 1e9, 1e9, 1e6, 2.2e6)  # bytes per second; two milliseconds make a slice


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 8))


def train(rank: int, *, overlaps: bool, is_measured: bool) -> tuple[list[torch.Tensor], list[int]]:
    """Returns the parameters, and how large the largest slice was, pass by pass."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    model: nn.Module = (
        parallelize(net, optimizer, plan="dense")[0] if overlaps else DistributedDataParallel(net, plan="dense")
    )
    generator, sizes = torch.Generator().manual_seed(rank), []
    for rate in RATES:
        for _ in range(2 * PASSES):
            # Ranks measure different rates, and rank 1 at first none.
            has_rate = is_measured and rate is not None and (rank != 1 or rate != RATES[1])
            set_rate(rate * (1 + rank / 10) if has_rate and rate else None)
            optimizer.zero_grad()
            model(torch.randn(8, 64, generator=generator)).square().mean().backward()
            optimizer.step()
            table = model._synchroniser._gradients[0].table  # type: ignore[union-attr]
            sizes.append(max(item.spec.size_bytes for item in table.current.slices))
    flush(model)
    verify_replicas(nn.ParameterList(net.parameters()))
    undertow.barrier()
    return [parameter.detach().clone() for parameter in net.parameters()], sizes


def compare(rank: int) -> list[int]:
    expected, fixed = train(rank, overlaps=False, is_measured=False)
    assert len(set(fixed)) == 1
    seen = []
    for overlaps in (False, True):
        parameters, sizes = train(rank, overlaps=overlaps, is_measured=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(parameters, expected, strict=True))
        seen.append(sizes)
    assert seen[0] == seen[1]
    return seen[0]


@pytest.mark.parametrize("over_tcp", [False, True])
def test_slices_change_with_the_link_and_the_bits_do_not(over_tcp: bool) -> None:
    first, *others = run_workers(3, compare, environment=LIMITS, over_tcp=over_tcp)
    assert all(other == first for other in others)
    # At the start a quarter of the largest; 2 ms of 1, 8 and 1000 MB/s, but a third of the model at the most.
    changes = [size for size, before in zip(first, [0, *first], strict=False) if size != before]
    assert changes[0] == 4096
    assert changes[1] == pytest.approx(2100, abs=200)
    assert changes[2] == 11968  # a third of 35,872 bytes, in whole sixteens
    assert changes[3] == pytest.approx(2200, abs=100)


def test_a_slice_that_is_given_stays() -> None:
    for sizes in run_workers(2, train_given, environment={"UNDERTOW_SLICE": "2048"}):
        assert set(sizes) == {2048}


def train_given(rank: int) -> list[int]:
    return train(rank, overlaps=True, is_measured=True)[1]
