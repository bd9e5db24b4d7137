"""Forward pre-hooks that are left out of copies, of files and of compiled graphs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def never_compiled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Run this function eagerly, even when compiled code calls it.

    `torch.compiler.disable` imports the compiler, which takes two seconds.  So it is only used after the script has
    imported the compiler; before that nothing is compiled.
    """
    disabled: list[Callable[Given, Result]] = []

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    return never_looked_into(call)


def never_looked_into(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Keep the compiler from inspecting the arguments of this function when compiled code causes its call.

    To inspect a tensor, the compiler creates a storage object, which torch keeps: the tensor is then no longer the only
    owner of its memory.  The functions that this one calls are still compiled.
    """
    frames: Any = torch._C._dynamo.eval_frame
    code = function.__code__
    if hasattr(frames, "skip_code"):  # older versions
        frames.skip_code(code)
    elif hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    return function


class ForwardHook:
    """A hook that does nothing in a copy of its module, or in one read from a file."""

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return do_nothing

    def __reduce__(self) -> tuple[Any, ...]:
        # A file may be read where undertow is not installed.  `__exit__` takes any arguments and does nothing.
        return getattr, (nullcontext(), "__exit__")


class EagerHook(ForwardHook):
    """A hook that calls a function eagerly, also from compiled code."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    @never_compiled
    def __call__(self, *given: Any) -> None:
        self._function(*given)


def do_nothing(module: torch.nn.Module, *inputs: Any) -> None:
    pass
