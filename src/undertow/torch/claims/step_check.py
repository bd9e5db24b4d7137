"""Checks, before an optimizer steps, that its gradients have been synchronised.

In: the claims of wrappers, and every optimizer that is about to step.
Out: `ConfigError` from `optimizer.step()`, with the names of the tensors and what to do.

Three mistakes let replicas drift apart silently: the wrapper is discarded and the unwrapped module is trained; the
inner module is called directly instead of its wrapper; or parameters are added to a module after it was wrapped.
Legitimate cases are not refused: gradients that `no_sync` accumulates, parameters of modules that are not wrapped, and
a jointly trained model that one rank continues to train alone (which is logged once).  If the script may average
gradients by other means, a warning replaces the error; if it certainly does, there is no message.

A parameter outside all modules (a weight of the loss) that shares its optimizer with a wrapped module causes one
warning: torch's own class does not average it either, but the author of a single-process script expects it.

If nothing is suspicious, a check costs a comparison of a few integers.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from undertow.errors import ConfigError
from undertow.plain_text import name_some
from undertow.runtime import process
from undertow.torch.claims.claims import Claim, ClaimedParameter, forget_strays, registry
from undertow.torch.claims.other_means import count_collectives, find_averaged, may_average, steps_with_averages

log = logging.getLogger("undertow")

SHOWN = 4  # names in a message
_CALL = "Call the model that parallelize or DistributedDataParallel returned"


class _Moment(NamedTuple):
    """A point in the script's run."""

    collectives: int | None  # called by the script itself so far; None if unknown
    checks: int  # made so far


class StepCheck:
    """The checks of all optimizers, from the first claim until the ranks leave the job."""

    def __init__(self) -> None:
        self._cleared: weakref.WeakKeyDictionary[Optimizer, tuple[int, ...]] = weakref.WeakKeyDictionary()
        self._excused: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # gradients may be averaged by other means
        self._warned: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # about parameters outside wrapped modules
        self._last: weakref.WeakKeyDictionary[Optimizer, _Moment] = weakref.WeakKeyDictionary()  # last check of each
        self._latest = _Moment(0, 0)  # of any check, or of the newest claim
        self._checks = 0
        self.stop = register_optimizer_step_pre_hook(_before_step).remove

    def note_claim(self) -> None:
        """Note that a module is about to be claimed."""
        self._number_calls()
        self._latest = _Moment(count_collectives(), self._checks)

    def check(self, optimizer: Optimizer) -> None:
        """Raise `ConfigError` if gradients of this optimizer should have been synchronised and were not."""
        if optimizer in self._excused or steps_with_averages(optimizer):
            return
        self._number_calls()
        state = (registry.changes, *(len(group["params"]) for group in optimizer.param_groups))
        if self._cleared.get(optimizer) != state:
            suspects = [*self._find_orphans(optimizer), *self._find_added_later(optimizer)]
            if not suspects:
                self._cleared[optimizer] = state
        if registry.strays:
            self._check_strays(optimizer)
        self._last[optimizer] = self._latest = _Moment(count_collectives(), self._checks)

    def _number_calls(self) -> None:
        """Count this check, and assign its number to the wrappers that were called since the last one."""
        self._checks += 1
        for claim in registry.modules.values():
            if claim.is_called:
                claim.is_called, claim.last_call = False, self._checks

    def _last_check(self, optimizer: Optimizer) -> _Moment:
        return self._last.get(optimizer, self._latest)

    def _refuse(self, optimizer: Optimizer, found: dict[torch.Tensor, str], happened: str, remedy: str) -> None:
        """Raise `ConfigError` about these parameters, or log a warning if other means may average their gradients."""
        averaged = find_averaged()
        names = [name for parameter, name in found.items() if id(parameter) not in averaged]
        if not names:
            self._excused.add(optimizer)  # searching again at every step would be slow
            return
        problem = f"gradients of {name_some(names, SHOWN)} {happened}"
        if not may_average(self._last_check(optimizer).collectives):
            raise ConfigError(f"{problem}. {remedy}")
        self._excused.add(optimizer)
        log.warning("%s. Unless the script averages them by other means, the replicas drift apart. %s", problem, remedy)

    def _is_trained_together(self, claim: Claim, optimizer: Optimizer) -> bool:
        """Return whether all ranks make this step, not just one rank that continues to train alone."""
        return not claim.has_synchronised or claim.last_call > self._last_check(optimizer).checks

    def _find_orphans(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Return parameters whose wrapper was deleted before it synchronised; refuse any with gradients."""
        found = {
            parameter: claimed.name
            for parameter in _parameters_of(optimizer)
            if (claimed := registry.parameters.get(parameter)) is not None and claimed.is_orphan
        }
        if present := _with_gradients(found):
            self._refuse(
                optimizer,
                present,
                "were never averaged over the workers: the wrapper around their module is gone, and the module itself "
                "is trained",
                "Keep the model that parallelize or DistributedDataParallel returns, and call it: "
                "model, optimizer = parallelize(model, optimizer)",
            )
        return [*found]

    def _find_added_later(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Return parameters that were added to a wrapped module later; refuse any with gradients."""
        unknown = [parameter for parameter in _parameters_of(optimizer) if parameter not in registry.parameters]
        in_modules = _find_in_modules(unknown) if unknown else {}
        found = {parameter: item for parameter, item in in_modules.items() if item is not None}
        together = {p: name for p, (name, claim) in found.items() if self._is_trained_together(claim, optimizer)}
        if present := _with_gradients(together):
            self._refuse(
                optimizer,
                present,
                "are not averaged over the workers: these parameters were added after their module was wrapped",
                "Add them before parallelize or DistributedDataParallel, or wrap the module again",
            )
        self._warn_of_outsiders(optimizer, [parameter for parameter in unknown if parameter not in in_modules])
        return [*found]

    def _warn_of_outsiders(self, optimizer: Optimizer, outside: Sequence[torch.Tensor]) -> None:
        """Warn once about parameters outside a wrapped module: each rank steps them with its own gradient."""
        found = [parameter for parameter in outside if parameter.grad is not None]
        is_beside = any(parameter in registry.parameters for parameter in _parameters_of(optimizer))
        if not found or optimizer in self._warned or not is_beside:
            return
        self._warned.add(optimizer)
        if may_average(self._last_check(optimizer).collectives) or {id(p) for p in found} <= find_averaged():
            return
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in found[:SHOWN])
        log.warning(
            "%d parameters of this %s (shapes: %s) belong to no wrapped module: their gradients are not averaged over "
            "the workers, and each worker trains its own. To train them together, make them parameters of the module "
            "before it is wrapped",
            len(found),
            type(optimizer).__name__,
            shapes,
        )

    def _check_strays(self, optimizer: Optimizer) -> None:
        found = [parameter for parameter in _parameters_of(optimizer) if parameter in registry.strays]
        known = {p: registry.parameters[p] for p in found if p in registry.parameters and p.grad is not None}
        forget_strays([parameter for parameter in found if parameter.grad is None])
        never = {
            parameter: claimed.name
            for parameter, claimed in known.items()
            if not claimed.is_synchronised
            and any(self._is_trained_together(claim, optimizer) for claim in claimed.claims)
        }
        if never:
            self._refuse(
                optimizer,
                never,
                "were never averaged over the workers: they come from the inner module, which was called directly "
                "instead of its wrapper",
                f"{_CALL}, or use its no_sync() if each worker is meant to train alone",
            )
        else:
            _warn_of_strays([*known.values()])
        forget_strays(found)


_current: StepCheck | None = None


def claim(module: torch.nn.Module, ignored: Iterable[str]) -> Claim:
    """Claim the parameters of a module that several ranks train, and start checking optimizers."""
    global _current
    if _current is None:
        _current = StepCheck()
        process.at_shutdown(forget_all)
    _current.note_claim()
    return Claim(module, ignored)


def forget_all() -> None:
    """Stop checking, because the ranks leave the job and each trains alone."""
    global _current
    if _current is not None:
        _current.stop()
        _current = None
    registry.clear()


def _before_step(optimizer: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if torch.compiler.is_compiling():
        return None
    check(optimizer)
    return _check_after_closure(optimizer, arguments, options)


def check(optimizer: Optimizer) -> None:
    """Check this optimizer now, as is done before each step."""
    if _current is not None:
        _current.check(optimizer)


def _check_after_closure(optimizer: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the step's arguments with a closure that also checks the gradients that it has computed."""
    first = arguments[1] if len(arguments) > 1 else options.get("closure")
    if not callable(first):
        return None

    @functools.wraps(first, updated=())
    def closure() -> Any:
        loss = first()
        check(optimizer)
        return loss

    if len(arguments) > 1:
        return (arguments[0], closure, *arguments[2:]), options
    return arguments, {**options, "closure": closure}


def _parameters_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _with_gradients(found: dict[torch.Tensor, str]) -> dict[torch.Tensor, str]:
    return {parameter: name for parameter, name in found.items() if parameter.grad is not None}


def _find_in_modules(unknown: Sequence[torch.Tensor]) -> dict[torch.Tensor, tuple[str, Claim] | None]:
    """Find these parameters in wrapped modules; None for those that are legitimately unclaimed."""
    wanted = {id(parameter) for parameter in unknown}
    found: dict[torch.Tensor, tuple[str, Claim] | None] = {}
    for module, claimed in list(registry.modules.items()):
        is_checked = claimed.is_alive and not claimed.is_local
        for name, parameter in module.named_parameters():
            if id(parameter) in wanted:
                found[parameter] = (name, claimed) if is_checked and name not in claimed.ignored else None
    return found


def _warn_of_strays(parameters: Sequence[ClaimedParameter]) -> None:
    """Warn once.  Not an error: one rank may continue alone, and a penalty on weights is the same on all ranks."""
    fresh = [claimed.name for claimed in parameters if not claimed.claims[-1].is_warned]
    for claimed in parameters:
        claimed.claims[-1].is_warned = True
    if fresh:
        log.warning(
            "gradients of %s were added by a backward pass that did not go through the wrapper, and are not averaged: "
            "unless they are the same on all ranks, or only one rank continues training, the replicas drift apart. %s",
            name_some(fresh, SHOWN),
            _CALL,
        )
