"""Gradients that no synchronised pass has seen, noticed before an optimizer steps with them.

In: the parameters of wrapped modules, "this gradient was synchronised", "this one came on this rank alone".
Out: `ConfigError` out of `optimizer.step()`, with the names of the tensors and what to do.

Three mistakes make replicas drift apart without a sign: the wrapper is thrown away and the raw module is trained, the
inner module is called past the wrapper, or parameters are added to a module after it was wrapped.  What is legitimate
stays so: gradients that `no_sync` accumulates, parameters of modules that are not wrapped, and a model that was trained
together and is then trained on by one rank (said once).

A step costs a comparison of a few integers as long as nothing is suspicious.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from undertow.errors import ConfigError
from undertow.runtime import process

log = logging.getLogger("undertow")

SHOWN = 4  # names in a message
_CALL = "Call the model that parallelize or DistributedDataParallel returned"


class Entry:
    """One parameter, as the wrappers around it know it."""

    __slots__ = ("claims", "is_synchronised", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.claims: list[Claim] = []  # several, if wrappers share the parameter; the newest is the last
        self.is_synchronised = False  # a gradient of it took part in a synchronised pass

    @property
    def is_alive(self) -> bool:
        return any(claim.is_alive for claim in self.claims)

    @property
    def is_excused(self) -> bool:
        return any(claim.is_local for claim in self.claims)


class Claim:
    """The parameters of one wrapped module, known as long as the module is there, not as long as its wrapper."""

    def __init__(self, module: torch.nn.Module, ignored: Iterable[str]) -> None:
        self.is_alive = True  # the wrapper is there
        self.is_local = False  # a forward under `no_sync` has asked for gradients of this rank only
        self.is_warned = False
        self.ignored = frozenset(ignored)
        _modules[module] = self
        for name, parameter in module.named_parameters():
            if name not in self.ignored:
                self.claim(parameter, name)
        _change()

    def claim(self, parameter: torch.Tensor, name: str) -> Entry:
        """The entry of this parameter: a new one, unless another wrapper that is still there has one."""
        entry = _entries.get(parameter)
        if entry is None or not entry.is_alive:
            entry = _entries[parameter] = Entry(name)
        if self not in entry.claims:
            entry.claims.append(self)
        return entry  # type: ignore[no-any-return]

    def follow(self, passes: object) -> None:
        """These passes are the wrapper's: when they are gone, the wrapper is."""
        weakref.finalize(passes, self._lose).atexit = False

    def release(self) -> None:
        """The wrapper takes care of nothing any more, and that is on purpose."""
        self.is_local = True

    def _lose(self) -> None:
        self.is_alive = False
        _change()


def note_stray(parameter: torch.Tensor, entry: Entry) -> None:
    """A gradient of it was accumulated on this rank only, and no forward of a wrapper asked for that."""
    if not entry.is_excused and not entry.claims[-1].is_warned:
        _strays[parameter] = True


def forget_strays(parameters: Iterable[torch.Tensor]) -> None:
    """A synchronised pass over them has ended."""
    if _strays:
        for parameter in parameters:
            _strays.pop(parameter, None)


_modules: Any = WeakIdKeyDictionary()  # wrapped ones, each with its newest claim
_entries: Any = WeakIdKeyDictionary()  # their parameters, each with its newest entry
_strays: Any = WeakIdKeyDictionary()  # parameters whose gradient holds something that was not synchronised
_cleared: weakref.WeakKeyDictionary[Optimizer, tuple[int, ...]] = weakref.WeakKeyDictionary()
_changes = 0  # of what is claimed, and by whom
_stop: Callable[[], None] | None = None  # watching optimizers


def claim(module: torch.nn.Module, ignored: Iterable[str]) -> Claim:
    """Claim the parameters of a module that several ranks train, and watch optimizers from now on."""
    global _stop
    if _stop is None:
        _stop = register_optimizer_step_pre_hook(_before_step).remove
        process.at_shutdown(forget_all)
    return Claim(module, ignored)


def forget_all() -> None:
    """The ranks have parted: each trains for itself."""
    global _stop
    if _stop is not None:
        _stop()
        _stop = None
    for known in (_modules, _entries, _strays, _cleared):
        known.clear()


def _change() -> None:
    global _changes
    _changes += 1


def _before_step(optimizer: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if torch.compiler.is_compiling():
        return None
    check(optimizer)
    return _check_after_closure(optimizer, arguments, options)


def _check_after_closure(optimizer: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The step's arguments, with a closure that checks the gradients it has computed."""
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


def check(optimizer: Optimizer) -> None:
    """`ConfigError` if this optimizer is about to step with gradients that should have been synchronised."""
    state = (_changes, *(len(group["params"]) for group in optimizer.param_groups))
    if _cleared.get(optimizer) != state:
        suspects = [*_find_orphans(optimizer), *_find_newcomers(optimizer)]
        if not suspects:
            _cleared[optimizer] = state
    if _strays:
        _check_strays(optimizer)


def _parameters_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _find_orphans(optimizer: Optimizer) -> list[torch.Tensor]:
    """Parameters whose wrapper is gone before it synchronised anything; an error if they have gradients."""
    found = {
        parameter: entry
        for parameter in _parameters_of(optimizer)
        if (entry := _entries.get(parameter)) is not None
        and not (entry.is_alive or entry.is_excused or entry.is_synchronised)
    }
    names = [entry.name for parameter, entry in found.items() if parameter.grad is not None]
    if names:
        raise ConfigError(
            f"gradients of {_list(names)} were never averaged over the workers: the wrapper around their module is "
            f"gone, and the module itself is trained. Keep what parallelize or DistributedDataParallel returns, and "
            "call that: model, optimizer = parallelize(model, optimizer)"
        )
    return [*found]


def _find_newcomers(optimizer: Optimizer) -> list[torch.Tensor]:
    """Parameters that came into a wrapped module later; an error if they have gradients."""
    unknown = [parameter for parameter in _parameters_of(optimizer) if parameter not in _entries]
    places = _find_places(unknown) if unknown else {}
    names = [name for parameter, name in places.items() if parameter.grad is not None]
    if names:
        raise ConfigError(
            f"gradients of {_list(names)} are not averaged over the workers: these parameters were added after their "
            "module was wrapped. Add them before parallelize or DistributedDataParallel, or wrap the module again"
        )
    return [*places]


def _find_places(unknown: Sequence[torch.Tensor]) -> dict[torch.Tensor, str]:
    """Which of them are in wrapped modules, with their names there."""
    wanted = {id(parameter) for parameter in unknown}
    places = {}
    for module, claimed in list(_modules.items()):
        if claimed.is_alive and not claimed.is_local:
            for name, parameter in module.named_parameters():
                if id(parameter) in wanted and name not in claimed.ignored:
                    places[parameter] = name
    return places


def _check_strays(optimizer: Optimizer) -> None:
    found = [parameter for parameter in _parameters_of(optimizer) if parameter in _strays]
    entries = [_entries[p] for p in found if p in _entries and p.grad is not None]
    forget_strays([parameter for parameter in found if parameter.grad is None])
    names = [entry.name for entry in entries if not entry.is_synchronised]
    if names:
        raise ConfigError(
            f"gradients of {_list(names)} were never averaged over the workers: they come from the inner module, which "
            f"was called past its wrapper. {_CALL}, or use its no_sync() if each worker is to train for itself"
        )
    _warn(entries)
    forget_strays(found)


def _warn(entries: Sequence[Entry]) -> None:
    """A model that was synchronised before may be trained on by one rank: saying it once is enough."""
    fresh = [entry.name for entry in entries if not entry.claims[-1].is_warned]
    for entry in entries:
        entry.claims[-1].is_warned = True
    if fresh:
        log.warning(
            "gradients of %s come from the inner module, not from its wrapper, and are not averaged: the replicas "
            "drift apart unless only one rank trains on. %s",
            _list(fresh),
            _CALL,
        )


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
