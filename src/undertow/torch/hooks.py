"""Hooks in front of a module's forward that go neither into copies nor into files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class ForwardHook:
    """What is left of it in a copy does nothing."""

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return do_nothing

    def __reduce__(self) -> tuple[Any, ...]:
        return _forget, ()


def do_nothing(module: torch.nn.Module, *inputs: Any) -> None:
    pass


def _forget() -> Callable[..., None]:
    return do_nothing
