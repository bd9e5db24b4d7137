"""Gradients that no synchronised pass has seen, noticed before an optimizer steps with them.

In: the parameters of wrapped modules, "this gradient was synchronised", "this one came on this rank alone".
Out: `ConfigError` out of `optimizer.step()`, with the names of the tensors and what to do.

Three mistakes make replicas drift apart without a sign: the wrapper is thrown away and the raw module is trained, the
inner module is called past the wrapper, or parameters are added to a module after it was wrapped.  What is legitimate
stays so: gradients that `no_sync` accumulates, parameters of modules that are not wrapped, and a model that was trained
together and is then trained on by one rank (said once).  Where the script may average gradients by other means, a
warning takes the place of the error; where it certainly does, nothing is said.

A parameter that is in no module (a weight of the loss) and shares its optimizer with a wrapped module is mentioned
once: torch's own class does not average it either, but a script for one process expects it.

A step costs a comparison of a few integers as long as nothing is suspicious.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from undertow.errors import ConfigError
from undertow.runtime import process
from undertow.torch.naming import name_some
from undertow.torch.other_means import count_collectives, find_averaged, may_average, steps_with_averages

log = logging.getLogger("undertow")

SHOWN = 4  # names in a message
_CALL = "Call the model that parallelize or DistributedDataParallel returned"


class Moment(NamedTuple):
    """How far the script had come."""

    collectives: int | None  # that it called itself; None: unknown
    checks: int


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
    def is_shared(self) -> bool:
        return any(claim.is_shared for claim in self.claims)

    @property
    def is_excused(self) -> bool:
        return any(claim.is_local for claim in self.claims)

    @property
    def is_orphan(self) -> bool:
        """Its wrapper is gone, and has never synchronised anything."""
        return not (self.is_alive or self.is_excused or any(claim.has_synchronised for claim in self.claims))


class Claim:
    """The parameters of one wrapped module, known as long as the module is there, not as long as its wrapper."""

    def __init__(self, module: torch.nn.Module, ignored: Iterable[str]) -> None:
        self.is_alive = True  # the wrapper is there
        self.is_shared = True  # by several workers
        self.is_local = False  # a forward under `no_sync` has asked for gradients of this rank only
        self.is_warned = False
        self.has_synchronised = False  # the gradient of any parameter
        self.is_called = False  # by a forward that wants synchronisation, since an optimizer was checked
        self.last_call = 0  # by the number of the check that saw it
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

    def note_forward(self) -> None:
        """The wrapper is called, and gradients of this call will be synchronised."""
        self.is_called = True  # no number: compiled code would be compiled anew for each

    def release(self) -> None:
        """The wrapper takes care of nothing any more, and that is on purpose."""
        self.is_local = True

    def _lose(self) -> None:
        self.is_alive = False
        _change()


def note_synchronised(entry: Entry, claim: Claim) -> None:
    """A gradient of it takes part in a synchronised pass."""
    entry.is_synchronised = claim.has_synchronised = True


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
_excused: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # steps with gradients that may be averaged by other means
_mentioned: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # was looked through for parameters beside a module
_last: weakref.WeakKeyDictionary[Optimizer, Moment] = weakref.WeakKeyDictionary()  # when it was checked
_latest = Moment(0, 0)  # when any optimizer was checked, or the newest claim was made
_checks = 0  # of optimizers
_changes = 0  # of what is claimed, and by whom
_stop: Callable[[], None] | None = None  # watching optimizers


def claim(module: torch.nn.Module, ignored: Iterable[str]) -> Claim:
    """Claim the parameters of a module that several ranks train, and watch optimizers from now on."""
    global _stop, _latest
    _see_calls()
    _latest = Moment(count_collectives(), _checks)
    if _stop is None:
        _stop = register_optimizer_step_pre_hook(_before_step).remove
        process.at_shutdown(forget_all)
    return Claim(module, ignored)


def exempt(module: torch.nn.Module) -> None:
    """A module that is wrapped for a group of one worker: there is nothing to average."""
    made = Claim(module, ())
    made.release()
    made.is_shared = False
    made.is_alive = False  # a wrapper for several workers, should there be one later, makes claims of its own


def claimed_parameters() -> list[torch.Tensor]:
    """Those of all modules that were wrapped for several workers, whether their wrappers are still there or not."""
    return [parameter for parameter, entry in list(_entries.items()) if entry.is_shared]


def forget_all() -> None:
    """The ranks have parted: each trains for itself."""
    global _stop
    if _stop is not None:
        _stop()
        _stop = None
    for known in (_modules, _entries, _strays, _cleared, _excused, _mentioned, _last):
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
    global _latest
    if optimizer in _excused or steps_with_averages(optimizer):
        return
    _see_calls()
    state = (_changes, *(len(group["params"]) for group in optimizer.param_groups))
    if _cleared.get(optimizer) != state:
        suspects = [*_find_orphans(optimizer), *_find_newcomers(optimizer)]
        if not suspects:
            _cleared[optimizer] = state
    if _strays:
        _check_strays(optimizer)
    _last[optimizer] = _latest = Moment(count_collectives(), _checks)


def _see_calls() -> None:
    """Number the calls of wrappers since the last check."""
    global _checks
    _checks += 1
    for claim in _modules.values():
        if claim.is_called:
            claim.is_called, claim.last_call = False, _checks


def _parameters_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _refuse(optimizer: Optimizer, found: dict[torch.Tensor, str], happened: str, remedy: str) -> None:
    """`ConfigError` about those that have gradients; a warning if the gradients may be averaged by other means."""
    averaged = find_averaged()
    names = [name for parameter, name in found.items() if id(parameter) not in averaged]
    if not names:
        _excused.add(optimizer)  # to look again at every step would take long
        return
    problem = f"gradients of {name_some(names, SHOWN)} {happened}"
    if not may_average(_last.get(optimizer, _latest).collectives):
        raise ConfigError(f"{problem}. {remedy}")
    _excused.add(optimizer)
    log.warning("%s. Unless the script averages them by other means, the replicas drift apart. %s", problem, remedy)


def _is_trained_together(claim: Claim, optimizer: Optimizer) -> bool:
    """Whether this step belongs to the training by all ranks, not to what one rank does with the model afterwards."""
    return not claim.has_synchronised or claim.last_call > _last.get(optimizer, _latest).checks


def _with_gradients(found: dict[torch.Tensor, str]) -> dict[torch.Tensor, str]:
    return {parameter: name for parameter, name in found.items() if parameter.grad is not None}


def _find_orphans(optimizer: Optimizer) -> list[torch.Tensor]:
    """Parameters whose wrapper is gone before it synchronised anything; an error if they have gradients."""
    found = {
        parameter: entry.name
        for parameter in _parameters_of(optimizer)
        if (entry := _entries.get(parameter)) is not None and entry.is_orphan
    }
    if present := _with_gradients(found):
        _refuse(
            optimizer,
            present,
            "were never averaged over the workers: the wrapper around their module is gone, and the module itself is "
            "trained",
            "Keep what parallelize or DistributedDataParallel returns, and call that: "
            "model, optimizer = parallelize(model, optimizer)",
        )
    return [*found]


def _find_newcomers(optimizer: Optimizer) -> list[torch.Tensor]:
    """Parameters that came into a wrapped module later; an error if they have gradients."""
    unknown = [parameter for parameter in _parameters_of(optimizer) if parameter not in _entries]
    places = _find_places(unknown) if unknown else {}
    found = {parameter: place for parameter, place in places.items() if place is not None}
    together = {p: name for p, (name, claim) in found.items() if _is_trained_together(claim, optimizer)}
    if present := _with_gradients(together):
        _refuse(
            optimizer,
            present,
            "are not averaged over the workers: these parameters were added after their module was wrapped",
            "Add them before parallelize or DistributedDataParallel, or wrap the module again",
        )
    _mention_outsiders(optimizer, [parameter for parameter in unknown if parameter not in places])
    return [*found]


def _find_places(unknown: Sequence[torch.Tensor]) -> dict[torch.Tensor, tuple[str, Claim] | None]:
    """Which of them are in modules that were wrapped, with their names there; None where that is on purpose."""
    wanted = {id(parameter) for parameter in unknown}
    places: dict[torch.Tensor, tuple[str, Claim] | None] = {}
    for module, claimed in list(_modules.items()):
        is_checked = claimed.is_alive and not claimed.is_local
        for name, parameter in module.named_parameters():
            if id(parameter) in wanted:
                places[parameter] = (name, claimed) if is_checked and name not in claimed.ignored else None
    return places


def _mention_outsiders(optimizer: Optimizer, outside: Sequence[torch.Tensor]) -> None:
    """Warn once about parameters beside a wrapped module: each rank steps them with a gradient of its own."""
    found = [parameter for parameter in outside if parameter.grad is not None]
    if not found or optimizer in _mentioned or not any(p in _entries for p in _parameters_of(optimizer)):
        return
    _mentioned.add(optimizer)
    if may_average(_last.get(optimizer, _latest).collectives) or {id(p) for p in found} <= find_averaged():
        return
    shapes = ", ".join(str(tuple(parameter.shape)) for parameter in found[:SHOWN])
    log.warning(
        "%d parameters of this %s (shapes: %s) belong to no wrapped module: their gradients are not averaged over the "
        "workers, and each worker trains its own. To train them together, make them parameters of the module before "
        "it is wrapped",
        len(found),
        type(optimizer).__name__,
        shapes,
    )


def _check_strays(optimizer: Optimizer) -> None:
    found = [parameter for parameter in _parameters_of(optimizer) if parameter in _strays]
    known = {p: _entries[p] for p in found if p in _entries and p.grad is not None}
    forget_strays([parameter for parameter in found if parameter.grad is None])
    never = {
        parameter: entry.name
        for parameter, entry in known.items()
        if not entry.is_synchronised and any(_is_trained_together(claim, optimizer) for claim in entry.claims)
    }
    if never:
        _refuse(
            optimizer,
            never,
            "were never averaged over the workers: they come from the inner module, which was called past its wrapper",
            f"{_CALL}, or use its no_sync() if each worker is to train for itself",
        )
    else:
        _warn([*known.values()])
    forget_strays(found)


def _warn(entries: Sequence[Entry]) -> None:
    """Say it once: one rank may train on with the model, and the penalty on its weights is the same on all ranks."""
    fresh = [entry.name for entry in entries if not entry.claims[-1].is_warned]
    for entry in entries:
        entry.claims[-1].is_warned = True
    if fresh:
        log.warning(
            "gradients of %s were added by a backward pass that did not go through the wrapper, and are not averaged: "
            "unless they are the same on all ranks, or only one rank trains on, the replicas drift apart. %s",
            name_some(fresh, SHOWN),
            _CALL,
        )
