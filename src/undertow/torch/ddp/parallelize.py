"""`parallelize`: the next forward pass starts while gradients are in flight.

In: a module, its optimizers, and the user's own training loop.  Out: the same objects, but `backward()` and `step()`
return without waiting for the network; each module waits for its own parameters in the next forward pass.  The results
are bit-identical to those of `DistributedDataParallel`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch.optim import Optimizer

from undertow.errors import ConfigError, PlanError
from undertow.plan.active_plan import ActivePlan
from undertow.torch.ddp.wrapper import DistributedDataParallel
from undertow.torch.gates.stepping import defer_steps, find_coupling
from undertow.torch.pending.pending_tensors import open_gates

log = logging.getLogger("undertow")


def parallelize(
    model: torch.nn.Module, *optimizers: Optimizer, separable: bool | None = None, **options: Any
) -> tuple[Any, ...]:
    """Train this model on all workers, and overlap communication with computation.

    Returns the model wrapped in a `DistributedDataParallel`, which gets the remaining options, and the same optimizers.
    Use them as before.

    The `step()` of an optimizer that mixes parameters waits for all gradients.  So does that of an optimizer that is
    not torch's own, unless `separable=True` says that it updates each parameter independently.  With `separable=False`
    all of them wait.
    """
    _check(model, optimizers)
    if isinstance(model, DistributedDataParallel) and options:
        raise ConfigError(f"this model is wrapped already: pass {', '.join(options)} to its DistributedDataParallel")
    if separable and any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in optimizers):
        raise ConfigError("LBFGS steps all parameters together: separable=True is not possible with it")
    wrapper = model if isinstance(model, DistributedDataParallel) else DistributedDataParallel(model, **options)
    wrapper.overlap()
    for optimizer in optimizers:
        reason = find_coupling(optimizer) if separable is None else None
        if reason is not None and wrapper.rank == 0:
            log.warning("optimizer.step() waits for all gradients: %s", reason)
        if reason is None and separable is not False:
            defer_steps(optimizer, verbose=wrapper.rank == 0)
    return wrapper, *optimizers


def plan_of(model: torch.nn.Module) -> ActivePlan:
    """Return the active plan of this wrapped model; its `plan` lists the schemes.

    The plan is computed during the first steps.  Raises `PlanError` if there is none yet, or none is needed.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError("plan_of takes the model that DistributedDataParallel or parallelize has returned")
    if model.active_plan is None:
        raise PlanError(
            "this model has no plan: a plan is made after the first few steps, if the model is large enough and there "
            "are several workers"
        )
    return model.active_plan


def _check(model: object, optimizers: Sequence[object]) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            f"parallelize takes the model first, not {type(model).__name__}: write parallelize(model, optimizer)"
        )
    if isinstance(model, TorchDistributedDataParallel) and not isinstance(model, DistributedDataParallel):
        raise ConfigError("this model is synchronised by torch's DistributedDataParallel already: pass its .module")
    if not optimizers:
        raise ConfigError("parallelize also needs the optimizer: model, optimizer = parallelize(model, optimizer)")
    parameters = set(model.parameters())
    for optimizer in optimizers:
        name = type(optimizer).__name__
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(f"parallelize takes a model and its optimizers: {name} is not a torch optimizer")
        if not any(parameter in parameters for group in optimizer.param_groups for parameter in group["params"]):
            raise ConfigError(f"this {name} holds no parameter of the model: make it from model.parameters()")


def flush(model: torch.nn.Module) -> None:
    """Wait until all gradients of this model have arrived, and make all deferred updates."""
    open_gates(list(model.parameters()))
