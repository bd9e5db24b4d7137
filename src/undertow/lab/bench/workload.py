"""What a worker of the bench trains: a replayed model, or a real one.

In: a name, a scale, a batch size.  Out: model, optimizer, batches and loss behind one face.
"""

from __future__ import annotations

import zlib
from typing import Any, Protocol

import torch
from torch import nn

from undertow.errors import ConfigError
from undertow.lab.real.names import REAL_NAMES
from undertow.lab.real.tasks import Task, make_task
from undertow.lab.replay.device import Device, Occupancy, sharpen_sleep
from undertow.lab.replay.model import ReplayedModel
from undertow.lab.replay.optimizer import ReplayedSGD
from undertow.zoo import find_model


class Workload(Protocol):
    @property
    def batch(self) -> int: ...

    @property
    def compute_s(self) -> float | None:
        """One step without communication; None if it has to be measured."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def make_batch(self, rank: int, step: int) -> tuple[torch.Tensor, ...]: ...

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor: ...


class Replay:
    """Published times and sizes."""

    def __init__(self, name: str, *, device: Device, scale: float, slowdown: float, batch: int | None) -> None:
        sharpen_sleep()
        found = find_model(name)
        self.model = ReplayedModel(found, device=device, scale=scale, slowdown=slowdown, batch=batch)
        self.batch = self.model.batch
        self.compute_s = found.iteration_s * slowdown * self.batch / found.batch
        self.optimizer = ReplayedSGD(self.model.parameters())

    def make_batch(self, rank: int, step: int) -> tuple[torch.Tensor, ...]:
        return self.model.make_batch(rank, step)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        loss: torch.Tensor = model(*batch).sum()
        return loss


class Training:
    """Real compute on the CPU."""

    compute_s = None

    def __init__(self, task: Task) -> None:
        self._task = task
        self.batch = task.batch
        self.model = task.make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=task.learning_rate)

    def make_batch(self, rank: int, step: int) -> tuple[torch.Tensor, ...]:
        return self._task.make_batch(rank, step)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self._task.loss(model, batch)


def make_workload(
    name: str,
    *,
    rank: int,
    scale: float,
    slowdown: float = 1.0,
    batch: int | None,
    occupancy: Occupancy | None = None,
) -> Workload:
    if name not in REAL_NAMES:
        device = Device(rank=rank, occupancy=occupancy)
        return Replay(name, device=device, scale=scale, slowdown=slowdown, batch=batch)
    if scale != 1:
        raise ConfigError(f"{name} computes for real and cannot be scaled: leave --scale out")
    return Training(make_task(name, batch=batch))


def count_gradient_bytes(model: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in _trained(model))


def digest(model: nn.Module) -> int:
    """A number that differs when parameters do, or the gradients that moved them last."""
    value = 0
    for parameter in _trained(model):
        value = zlib.crc32(parameter.detach().numpy(), value)
        if parameter.grad is not None:
            value = zlib.crc32(parameter.grad.contiguous().numpy(), value)
    return value


def _trained(model: nn.Module) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
