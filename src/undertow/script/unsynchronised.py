"""Detects a single-process script that trains without a torch optimizer, so that nothing synchronises its workers.

In: backward passes of a script that has neither made an optimizer nor joined the other workers, and the inputs of
`torch.autograd.grad` and `torch.func`.
Out: a warning at the second pass; `ConfigError` if the script's batches were to be split and it certainly trains,
because a tensor has changed since its gradient was computed.
The first pass does not count: some scripts run a model once, backward included, before they make its optimizer.
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
from undertow.plain_text import name_some
from undertow.script.awareness import has_joined, has_joined_alone
from undertow.settings import Batch, Settings
from undertow.torch.data.distribution import has_distributed

SHOWN = 3  # names in a message
LEGITIMATE_PASSES = 1  # before the first optimizer


class UnsynchronisedTraining:
    """A count of the backward passes before the first optimizer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._passes = 0
        self._leaves: Any = WeakIdKeyDictionary()  # differentiated tensors, with digests of their values at that time

    def start_gradients(self, inputs: Sequence[Any]) -> str | None:
        """Count a pass if one of these tensors has changed since its gradient was last computed.

        A batch does not count: it is a new tensor each time.  Nor does the input of a Jacobian, computed row by row:
        it does not change.  Returns the warning, if any.
        """
        is_update = self._note_values(inputs)
        return self._count(is_update) if is_update or any(map(_is_of_func, inputs)) else None

    def start_backward(self, outputs: Sequence[Any]) -> str | None:
        """Count a pass and return the warning, if any.

        Raises `ConfigError` if the script certainly trains and `--batch split` is given.
        """
        return self._count(self._note_values(list(_find_leaves(outputs))))

    def _note_values(self, tensors: Sequence[Any]) -> bool:
        """Record digests of these tensors; return whether one has changed since the last time."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return False  # reading a value would end the capture
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


_ORDINARY = (torch.Tensor, torch.nn.Parameter)  # not the compiler's tensors, which have no values


def _has_value(value: Any) -> bool:
    """Return whether this is a leaf tensor with readable values; tensors inside `torch.vmap` have none."""
    is_ordinary = type(value) in _ORDINARY and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    return is_ordinary and value.is_leaf and not value.is_meta


def _find_leaves(outputs: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the leaves to which a backward pass from these outputs adds gradients."""
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


def _is_of_func(value: object) -> bool:
    """Return whether torch.func differentiates with respect to this tensor; how the result is used cannot be seen."""
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_gradtrackingtensor(value)


def check_averaged(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> None:
    """Raise `ConfigError` if there are `names`: parameters whose gradients cover only this rank's share of the data."""
    if names:
        raise ConfigError(
            f"{type(optimizer).__name__} steps with gradients of {name_some(names, SHOWN)} that were not averaged: "
            "they were assigned (torch.autograd.grad, torch.func, gradients of another model), or computed by a "
            "backward pass before the optimizer knew the parameters, while each worker takes different data. Compute "
            "them with loss.backward() of the model that the optimizer trains, after making the optimizer, or use one "
            "worker (-n 1)"
        )


class FirstStepCheck:
    """A check, at the first optimizer step, that a script which is left alone has joined the other workers.

    `must_join` means that the script imports undertow, and had not joined when it made its optimizer.
    """

    def __init__(self, settings: Settings, announce: Callable[[str], None], *, must_join: bool = False) -> None:
        self._settings = settings
        self._announce = announce
        self._must_join = must_join
        self._is_made = False

    def check(self) -> None:
        """Warn if the script has not joined them, or if its batches should be split and are not.

        Raises `ConfigError` if they cannot be split.
        """
        if self._is_made or self._settings.world_size == 1:
            return
        self._is_made = True
        if has_joined_alone():
            self._refuse_alone()
        elif self._must_join and not has_joined():
            self._announce(
                f"{sys.argv[0]} imports undertow, but has not joined the other workers: each of "
                f"{self._settings.world_size} trains a full copy by itself. Call undertow.init() and wrap the model "
                "(undertow.torch), or leave the import out to have it trained as a single-process script"
            )
        elif self._settings.batch is Batch.SPLIT and not has_distributed():
            self._announce(
                "--batch split applies only to loaders that the script passes to undertow.torch.distribute(), and it "
                "has passed none: it knows of other workers, and shares all other data itself"
            )

    def _refuse_alone(self) -> None:
        problem = (
            f"{sys.argv[0]} has made a process group of one process (init_process_group), so undertow leaves it alone: "
            f"each of {self._settings.world_size} workers trains a full copy by itself and saves to the same paths. "
            "Leave the group out to have it trained as a single-process script, or make a group of all workers, or use "
            "one worker (-n 1)"
        )
        if self._settings.batch is Batch.SPLIT:
            raise ConfigError(f"--batch split is not possible: {problem}")
        if is_hidden():  # the script cannot know of the others
            raise ConfigError(f"{problem}. --plain off keeps RANK visible")
        self._announce(f"{problem} (--plain off silences this)")


_REMEDY = (
    "Make a torch.optim optimizer first, or use undertow.init() and undertow.torch.DistributedDataParallel, or one "
    "worker (-n 1)"
)
