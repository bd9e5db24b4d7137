"""Hooks in front of a module's forward that go neither into copies nor into files, nor into compiled graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def never_compiled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """As `torch.compiler.disable`, which imports the compiler at once: two seconds for whoever imports us.

    Like torch does for its own, the compiler is imported when the function is called.
    """
    disabled: list[Callable[Given, Result]] = []

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if not disabled:
            disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    return call


class ForwardHook:
    """What is left of it in a copy does nothing."""

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return do_nothing

    def __reduce__(self) -> tuple[Any, ...]:
        # In files there must be nothing of ours: they are read elsewhere.  This takes anything, and does nothing.
        return getattr, (nullcontext(), "__exit__")


def do_nothing(module: torch.nn.Module, *inputs: Any) -> None:
    pass
