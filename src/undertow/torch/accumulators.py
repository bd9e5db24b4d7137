"""Hooks behind the nodes that add to gradients.

In: one of autograd's nodes.  Out: a call for each gradient that it has added, which says whether autograd has given
its memory to the parameter without anything else having seen it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from undertow.torch.hooks import never_compiled, never_looked_into

Added = torch.Tensor | None


def follow_accumulation(node: Any, ready: Callable[[Added, Added], None]) -> None:
    """Call `ready(added, fresh)` after each addition.

    `fresh` is what was added as well, or None where other hooks of this node get it too: they may keep it, and read
    it at any time.  Hooks that run earlier are no matter: autograd copies what they keep.
    """

    def hook(inputs: Any, outputs: Any) -> None:
        _call(ready, outputs[0] if outputs else None, handle)

    never_looked_into(hook)
    hook.keeps_nothing = True  # type: ignore[attr-defined]
    handle = node.register_hook(hook)


@never_compiled  # where backward runs in compiled code
def _call(ready: Callable[[Added, Added], None], added: Added, handle: Any) -> None:
    ready(added, added if _are_ours(handle) else None)


def _are_ours(handle: Any) -> bool:
    """Whether all hooks of this node are made here."""
    hooks = handle.hooks_dict_ref()
    return hooks is not None and all(hasattr(hook, "keeps_nothing") for hook in list(hooks.values()))
