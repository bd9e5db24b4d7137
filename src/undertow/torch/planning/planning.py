"""The planning of one wrapped torch module: takes the calls of autograd's hooks, and checks devices for factors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from undertow.engine.interface import Group
from undertow.plan.plan import Plan
from undertow.plan.profile import LayerKind
from undertow.sync.planning import Planning
from undertow.torch.factors.devices import FACTORS, check_asked
from undertow.torch.factors.layers import find_layers
from undertow.torch.planning.probe import TorchProbe


class TorchPlanning(Planning):
    """The planning of one wrapped module."""

    INPUTS_REMEDY = (
        "Give each worker its own part of the data: loader = undertow.torch.distribute(loader), or a "
        "torch.utils.data.DistributedSampler"
    )
    PROCESS_GROUP_REMEDY = "Call torch.distributed.init_process_group first"

    def __init__(
        self,
        group: Group,
        module: torch.nn.Module,
        policy: str | Plan,
        process_group: Any = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._module = module
        self._torch_probe = TorchProbe(module, group, process_group, clock)
        self._asked: dict[str, torch.Tensor] = {}  # parameters whose factors the policy explicitly asks for
        super().__init__(group, policy, self._torch_probe)

    def check_devices(self, named: Mapping[str, torch.Tensor]) -> None:
        """Raise `ConfigError` if the policy asks for factors of parameters on a device where they are not exact.

        Checked before the parameters are adopted, and again before each forward, because a module may be moved.
        """
        self._asked |= self._find_asked(named)
        check_asked(self._policy, self._asked)

    def _find_asked(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the parameters whose factors the policy asks for: those that a plan names, or all linear layers'."""
        if isinstance(self._policy, Plan):
            schemes = self._policy.schemes
            return {name: parameter for name, parameter in named.items() if schemes.get(name) in FACTORS}
        if self._policy not in [scheme.value for scheme in FACTORS]:
            return {}
        layers, _ = find_layers(self._module, on_any_device=True)
        linear: set[torch.Tensor] = {layer.weight for layer in layers if layer.kind is LayerKind.LINEAR}
        return {name: parameter for name, parameter in named.items() if parameter in linear}

    def start_forward(self) -> bool:
        check_asked(self._policy, self._asked)
        return super().start_forward()

    @property
    def wants_inputs(self) -> bool:
        # In this order: code that reads the number of passes while it is compiled would be recompiled in every step.
        return not torch.compiler.is_compiling() and super().wants_inputs

    def ready(self, parameter: torch.Tensor) -> None:
        self._torch_probe.ready(parameter)
