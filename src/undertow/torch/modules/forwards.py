"""Parameters that the forward pass of each module reads, and tensors in its output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def find_readers(module: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, list[torch.nn.Parameter]]]:
    """Yield modules that contain parameters, each with the parameters that its own forward reads in training.

    These are the module's own parameters; for a module whose inner hooks are not called, all parameters below it.
    """
    seen: set[torch.nn.Module] = set()
    waiting = [module]
    while waiting:
        reader = waiting.pop()
        if reader in seen:
            continue
        seen.add(reader)
        is_closed = is_opaque(reader)
        if next(reader.parameters(), None) is not None:
            yield reader, list(reader.parameters(recurse=is_closed))
        if not is_closed:
            waiting.extend(reversed(list(reader.children())))


def is_opaque(module: torch.nn.Module) -> bool:
    """Whether a module is compiled, so that no hook inside it should be called."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def find_tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in a module's output; containers of unknown types are not searched."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, (list, tuple, set)):
        for value in outputs:
            yield from find_tensors(value)
    elif isinstance(outputs, dict):
        yield from find_tensors(tuple(outputs.values()))
    elif hasattr(outputs, "__dataclass_fields__"):
        yield from find_tensors(tuple(getattr(outputs, "__dict__", {}).values()))
