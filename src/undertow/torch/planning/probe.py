"""Measurements of a torch module for the planner: its layers, their times and rows, the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from undertow.engine.interface import Group
from undertow.plan.cluster import Cluster
from undertow.plan.measured import Measured
from undertow.plan.profile import Profile
from undertow.plan.replanner import change_rows
from undertow.plan.scheme import count_dense_traffic
from undertow.sync.gradient_table import GradientTable
from undertow.sync.links import (
    PRODUCT_SIZE,
    measure_adds,
    measure_cluster,
    measure_fastest,
    measure_shard_products,
)
from undertow.torch.claims.other_means import note_own_collective
from undertow.torch.factors.layers import Layer, find_layers
from undertow.torch.gradient.gradients import Gradients
from undertow.torch.planning.measuring import RowCounter, Survey
from undertow.torch.slots.device import describe_arithmetic, synchronise


class TorchProbe:
    """The probe of one module.  Without a group, it measures for a plan that is made later."""

    def __init__(
        self,
        module: torch.nn.Module,
        group: Group | None = None,
        process_group: Any = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.has_process_group = process_group is not None
        self._module = module
        self._group = group
        self._process_group = process_group
        self._clock = clock
        self._names: dict[torch.Tensor, str] = {}
        self._layers: dict[torch.Tensor, Layer] = {}
        self._obstacles: dict[torch.Tensor, str] = {}
        self._rows = RowCounter()
        self._survey: Survey | None = None
        self._profile: Profile | None = None

    def find_layers(self, gradients: GradientTable) -> dict[str, str]:
        assert isinstance(gradients, Gradients)
        names = gradients.names
        self._names |= names
        layers, obstacles = find_layers(self._module)
        for layer in layers:
            if layer.weight in names and layer.weight not in self._layers:
                self._layers[layer.weight] = layer
                self._rows.watch(layer, names[layer.weight])
        self._obstacles |= obstacles
        gradients.adopt_layers(self._layers)
        return {names[parameter]: reason for parameter, reason in obstacles.items() if parameter in names}

    def measure_cluster(self, *, again: bool = False) -> Cluster:
        assert self._group is not None
        return measure_cluster(self._group, TorchDevice(self.device, self._process_group), again=again)

    def start_survey(self) -> None:
        self._survey = Survey(self._module, self._clock)

    def start_forward(self) -> bool:
        if self._survey is None:
            return False
        self._survey.start_forward()
        return self._survey.is_measuring

    def start_backward(self) -> None:
        if self._survey is not None:
            self._survey.start_backward()
        self._rows.end_pass()

    def skip_backward(self) -> None:
        self._rows.end_pass()

    def ready(self, parameter: torch.Tensor) -> None:
        if self._survey is not None:
            self._survey.ready(parameter)

    def end_backward(self) -> None:
        if self._survey is None:
            return
        self._survey.end_backward()
        if self._survey.is_over:
            self._profile = self._survey.make_profile(self._names, self._layers, self._obstacles)
            self._survey = None

    def take_profile(self) -> Profile | None:
        profile, self._profile = self._profile, None
        return profile

    def take_rows(self) -> dict[str, float]:
        return self._rows.take()

    def find_obstacles(self) -> dict[str, str]:
        return {self._names[weight]: layer.obstacle for weight, layer in self._layers.items() if layer.obstacle}

    def describe_arithmetic(self) -> str:
        return describe_arithmetic(self.device)

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in (*self._names, *self._module.parameters())), torch.device("cpu"))


class Profiling(TorchProbe):
    """A profile of a script's first steps for a plan: writes it to a file, then ends the script.

    Takes the place of `TorchPlanning`: there is one worker, and nothing is sent.  The first wrapped module that trains
    is measured.
    """

    active = None
    adopt = TorchProbe.find_layers
    skip = TorchProbe.skip_backward
    end = TorchProbe.end_backward

    def __init__(self, module: torch.nn.Module, path: Path) -> None:
        super().__init__(module)
        self._path = path
        self.start_survey()
        self.has_gates = False  # set by `parallelize`, although a single worker needs no gates

    def start_forward(self) -> bool:
        profile = self.take_profile()
        if profile is not None:
            self._write(profile)
            raise SystemExit(0)
        return super().start_forward()

    def begin(self, *, has_gates: bool) -> None:
        self.start_backward()

    def _write(self, profile: Profile) -> None:
        Measured(
            profile=change_rows(profile, self.take_rows()),
            flops_per_s=TorchDevice(self.device).measure_products(),
            shard_flops_per_s=measure_shard_products(),
            add_bytes_per_s=measure_adds(),
            has_gates=self.has_gates,
        ).write(self._path)


class TorchDevice:
    """The device that a model trains on, with torch's process group of the same workers if there is one."""

    def __init__(self, device: torch.device, process_group: Any = None) -> None:
        self._device = device
        self._process_group = process_group
        self.has_process_group = process_group is not None

    def measure_products(self) -> float:
        matrix = torch.ones(PRODUCT_SIZE, PRODUCT_SIZE, device=self._device)

        def multiply() -> None:
            torch.mm(matrix, matrix)
            synchronise(self._device)

        return 2 * PRODUCT_SIZE**3 / measure_fastest(multiply)

    def measure_allreduce(self, size_bytes: int) -> float:
        memory = torch.zeros(size_bytes // 4, device=self._device)

        def reduce() -> None:
            note_own_collective()
            dist.all_reduce(memory, group=self._process_group)
            synchronise(self._device)

        return count_dense_traffic(size_bytes, dist.get_world_size(self._process_group)) / measure_fastest(reduce)
