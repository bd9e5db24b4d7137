"""Notices a single-process script that trains without a torch optimizer: nothing would keep its workers together.

In: backward passes of a script that has neither made an optimizer nor joined the other workers, and what
`torch.autograd.grad` and `torch.func` compute the gradients of.
Out: at the second one a warning; `ConfigError` where the script's batches were to be split and it trains for sure,
because what a gradient was computed of has changed since.
The first one is no sign: scripts run a model once, backward included, before they make its optimizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.utils.weak import WeakIdKeyDictionary

from undertow.errors import ConfigError
from undertow.hidden import is_hidden
from undertow.script.awareness import is_alone, knows_of_ranks
from undertow.settings import Batch, Settings
from undertow.torch.naming import name_some

SHOWN = 3  # names in a message
LEGITIMATE_PASSES = 1  # before the first optimizer


class Unsynchronised:
    """Counts the backward passes before the first optimizer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._passes = 0
        self._leaves: Any = WeakIdKeyDictionary()  # that gradients were computed of, and their values then

    def start_gradients(self, inputs: Sequence[Any]) -> str | None:
        """As `start_backward`, if one of these was changed since its gradient was computed before.

        A batch is not, it is a new one each time; nor is what a Jacobian is computed of, row by row.
        """
        is_update = self._note_values(inputs)
        return self._count(is_update) if is_update or any(map(_is_of_func, inputs)) else None

    def start_backward(self, outputs: Sequence[Any]) -> str | None:
        """Returns what is to be said, once; raises `ConfigError` with `--batch split` if the script trains for sure."""
        return self._count(self._note_values(list(_find_leaves(outputs))))

    def _note_values(self, tensors: Sequence[Any]) -> bool:
        """Whether one of these was changed since it was here before."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return False  # to read a value would end the capture
        leaves = {one: _digest(one) for one in tensors if _has_value(one)}
        is_update = any(self._leaves.get(one, value) != value for one, value in leaves.items())
        self._leaves.update(leaves)
        return is_update

    def _count(self, is_update: bool) -> str | None:
        self._passes += 1
        if self._settings.world_size == 1 or self._passes <= LEGITIMATE_PASSES:
            return None
        if is_update and self._settings.batch is Batch.SPLIT:
            raise ConfigError(f"--batch split is not possible: {self._describe()}. {_REMEDY}")
        return f"{self._describe()}. {_REMEDY} (--plain off silences this)"

    def _describe(self) -> str:
        return (
            f"{sys.argv[0]} computes gradients without a torch.optim optimizer, so nothing is synchronised: each of "
            f"{self._settings.world_size} workers computes everything by itself and saves to the same paths"
        )


_PLAIN = (torch.Tensor, torch.nn.Parameter)  # no stand-ins without values, with which the compiler computes


def _has_value(thing: Any) -> bool:
    """Whether it is a leaf that can be looked at: not from inside of `torch.vmap`."""
    is_plain = type(thing) in _PLAIN and not torch._C._functorch.is_functorch_wrapped_tensor(thing)
    return is_plain and thing.is_leaf and not thing.is_meta


def _find_leaves(outputs: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Those that gradients of these are added to."""
    nodes: list[Any] = [one.node if isinstance(one, GradientEdge) else one.grad_fn for one in outputs]
    seen: set[Any] = {None}
    while nodes:
        if (node := nodes.pop()) not in seen:
            seen.add(node)
            if hasattr(node, "variable"):
                yield node.variable
            nodes += [following for following, _ in node.next_functions]


def _digest(tensor: torch.Tensor) -> str:
    return f"{tensor._version} {tensor.detach().sum().item()}"


def _is_of_func(thing: object) -> bool:
    """Whether torch.func differentiates by it: what happens to the result is out of sight."""
    return isinstance(thing, torch.Tensor) and torch._C._functorch.is_gradtrackingtensor(thing)


def check_averaged(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> None:
    """`ConfigError` if these parameters of it have gradients of this rank's share of the data only."""
    if names:
        raise ConfigError(
            f"{type(optimizer).__name__} steps with gradients of {name_some(names, SHOWN)} that were not averaged: "
            "they were assigned (torch.autograd.grad, torch.func, gradients of another model), or come from a backward "
            "pass before the optimizer knew them, while each worker takes other data. Compute them with "
            "loss.backward() of the model that the optimizer trains, after the optimizer is made, or "
            "use one worker (-n 1)"
        )


class FirstStep:
    """The first step of a script that is left to join the other workers itself: has it joined them?

    `must_join` says that it imports undertow, and has not joined anything when it makes its optimizer.
    """

    def __init__(self, settings: Settings, say: Callable[[str], None], *, must_join: bool = False) -> None:
        self._settings = settings
        self._say = say
        self._must_join = must_join
        self._is_made = False

    def check(self) -> None:
        """Say so if it has not; raises `ConfigError` if its batches were to be split among those."""
        if self._is_made or self._settings.world_size == 1:
            return
        self._is_made = True
        if is_alone():
            self._refuse_alone()
        elif self._must_join and not knows_of_ranks():
            self._say(
                f"{sys.argv[0]} imports undertow, but has not joined the other workers: each of "
                f"{self._settings.world_size} trains a full copy by itself. Call undertow.init() and wrap the model "
                "(undertow.torch), or leave the import out to have it trained as a single-process script"
            )

    def _refuse_alone(self) -> None:
        words = (
            f"{sys.argv[0]} has made a process group of one process (init_process_group), so undertow leaves it alone: "
            f"each of {self._settings.world_size} workers trains a full copy by itself and saves to the same paths. "
            "Leave the group out to have it trained as a single-process script, or make one of all workers, or use one "
            "worker (-n 1)"
        )
        if self._settings.batch is Batch.SPLIT:
            raise ConfigError(f"--batch split is not possible: {words}")
        if is_hidden():  # it cannot know better
            raise ConfigError(f"{words}. --plain off shows it RANK")
        self._say(f"{words} (--plain off silences this)")


_REMEDY = (
    "Make a torch.optim optimizer first, or use undertow.init() and undertow.torch.DistributedDataParallel, or one "
    "worker (-n 1)"
)
