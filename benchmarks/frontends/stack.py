"""Model that the scripts in this folder train: a stack of wide layers, whose gradients are slow on any Ethernet."""

import itertools
import statistics
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

WIDTH, DEPTH, BATCH = 1024, 8, 64  # the batch is each worker's
WARM_UP, STEPS = 20, 40


def make_model() -> nn.Module:
    layers = [part for _ in range(DEPTH) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def make_data(workers: int) -> TensorDataset:
    samples = (WARM_UP + STEPS) * BATCH * workers
    return TensorDataset(torch.randn(samples, WIDTH), torch.randint(10, (samples,)))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader) -> float:
    """Train, and return the median milliseconds of a step."""
    ends = []
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    steps = [after - before for before, after in itertools.pairwise(ends)]
    return 1000 * statistics.median(steps[WARM_UP:])
