"""Claims of wrappers on the parameters of their modules.

In: wrapped modules, and notes that a gradient was synchronised or was accumulated on this rank only.
Out: for each parameter, what its wrappers have done so far, which `step_check` examines before an optimizer steps.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary


class ClaimedParameter:
    """A parameter, and the claims of wrappers on it."""

    __slots__ = ("claims", "is_synchronised", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.claims: list[Claim] = []  # several if wrappers share the parameter; the newest is last
        self.is_synchronised = False  # one of its gradients took part in a synchronised pass

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
        """Whether its wrapper was deleted without ever synchronising anything."""
        return not (self.is_alive or self.is_excused or any(claim.has_synchronised for claim in self.claims))


class Claim:
    """A wrapper's claim on the parameters of its module.  It lives as long as the module, not the wrapper."""

    def __init__(self, module: torch.nn.Module, ignored: Iterable[str]) -> None:
        self.is_alive = True  # the wrapper exists
        self.is_shared = True  # several workers train the module
        self.is_local = False  # a forward under `no_sync` has requested gradients of this rank only
        self.is_warned = False
        self.has_synchronised = False  # a gradient of any of its parameters
        self.is_called = False  # since the last check of an optimizer, with synchronisation
        self.last_call = 0  # the number of the check that followed the last call
        self.ignored = frozenset(ignored)
        registry.modules[module] = self
        for name, parameter in module.named_parameters():
            if name not in self.ignored:
                self.claim(parameter, name)
        registry.changes += 1

    def claim(self, parameter: torch.Tensor, name: str) -> ClaimedParameter:
        """Claim this parameter, together with other existing wrappers."""
        claimed = registry.parameters.get(parameter)
        if claimed is None or not claimed.is_alive:
            claimed = registry.parameters[parameter] = ClaimedParameter(name)
        if self not in claimed.claims:
            claimed.claims.append(self)
        return claimed  # type: ignore[no-any-return]

    def follow(self, passes: object) -> None:
        """Tie the claim to the wrapper's passes, which are deleted together with the wrapper."""
        weakref.finalize(passes, self._lose).atexit = False

    def note_forward(self) -> None:
        """Note a call of the wrapper whose gradients will be synchronised."""
        self.is_called = True  # not a counter, which would make the compiler recompile at each call

    def release(self) -> None:
        """Note that the wrapper intentionally leaves its parameters unsynchronised."""
        self.is_local = True

    def _lose(self) -> None:
        self.is_alive = False
        registry.changes += 1


class _Registry:
    """A registry of all claims in this process."""

    def __init__(self) -> None:
        self.modules: Any = WeakIdKeyDictionary()  # the newest claim of each wrapped module
        self.parameters: Any = WeakIdKeyDictionary()  # the `ClaimedParameter` of each of their parameters
        self.strays: Any = WeakIdKeyDictionary()  # parameters whose gradient is partly not synchronised
        self.changes = 0  # how often claims have changed

    def clear(self) -> None:
        for known in (self.modules, self.parameters, self.strays):
            known.clear()


registry = _Registry()


def note_synchronised(claimed: ClaimedParameter, claim: Claim) -> None:
    """Note that a gradient of this parameter takes part in a synchronised pass."""
    claimed.is_synchronised = claim.has_synchronised = True


def note_stray(parameter: torch.Tensor, claimed: ClaimedParameter) -> None:
    """Note that a gradient was accumulated on this rank only, although no forward of a wrapper requested that."""
    if not claimed.is_excused and not claimed.claims[-1].is_warned:
        registry.strays[parameter] = True


def forget_strays(parameters: Iterable[torch.Tensor]) -> None:
    """Forget strays, after a synchronised pass over these parameters."""
    if registry.strays:
        for parameter in parameters:
            registry.strays.pop(parameter, None)


def exempt(module: torch.nn.Module) -> None:
    """Exempt a module that is wrapped for a group of one worker, where there is nothing to average."""
    claim = Claim(module, ())
    claim.release()
    claim.is_shared = False
    claim.is_alive = False  # a later wrapper for several workers makes its own claims


def claimed_parameters() -> list[torch.Tensor]:
    """Return the parameters of all modules wrapped for several workers, including those of deleted wrappers."""
    return [parameter for parameter, claimed in list(registry.parameters.items()) if claimed.is_shared]
