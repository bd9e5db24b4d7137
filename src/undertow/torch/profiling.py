"""The first steps of a script, measured for a plan and nothing else.

In: a setting that names a file.  Out: that file, then the end of the script.
Takes the place of `Planning`; there is one worker, and nothing travels.
"""

from __future__ import annotations

from pathlib import Path

import torch

from undertow.plan.measured import Measured
from undertow.plan.outlook import change_rows
from undertow.torch.gradients import Gradients
from undertow.torch.layers import Layer, find_layers
from undertow.torch.links import measure_adds, measure_products, measure_shard_products
from undertow.torch.measuring import RowCounter, Survey


class Profiling:
    """Of one wrapped module; the first one that trains is the one that is meant."""

    coordinator = None

    def __init__(self, module: torch.nn.Module, path: Path) -> None:
        self._module = module
        self._path = path
        self._survey = Survey(module)
        self._rows = RowCounter()
        self._layers: dict[torch.Tensor, Layer] = {}
        self._obstacles: dict[torch.Tensor, str] = {}
        self._names: dict[torch.Tensor, str] = {}
        self.has_gates = False  # to be said by the second door: one worker alone needs none

    def adopt(self, gradients: Gradients) -> None:
        self._names |= gradients.names
        layers, self._obstacles = find_layers(self._module)
        for layer in layers:
            if layer.weight in self._names and layer.weight not in self._layers:
                self._layers[layer.weight] = layer
                self._rows.watch(layer, self._names[layer.weight])

    def start_forward(self) -> bool:
        if self._survey.is_over:
            self._write()
            raise SystemExit(0)
        self._survey.start_forward()
        return self._survey.is_measuring

    def begin(self, *, has_gates: bool) -> None:
        self._survey.start_backward()
        self._rows.end_pass()

    def stand_by(self) -> None:
        self._rows.end_pass()

    def ready(self, parameter: torch.Tensor) -> None:
        self._survey.ready(parameter)

    def end(self) -> None:
        self._survey.end_backward()

    def _write(self) -> None:
        profile = self._survey.make_profile(self._names, self._layers, self._obstacles)
        device = next((parameter.device for parameter in self._names), torch.device("cpu"))
        Measured(
            profile=change_rows(profile, self._rows.take()),
            flops_per_s=measure_products(device),
            shard_flops_per_s=measure_shard_products(),
            add_bytes_per_s=measure_adds(),
            has_gates=self.has_gates,
        ).write(self._path)
