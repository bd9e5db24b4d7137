"""The running backward pass, as autograd reports it.

In: autograd's pass numbers, nodes and callbacks.  Out: whether a backward runs, which gradients it will reach, and when
it ends; and a call for each gradient that it has accumulated, with the added tensor, and whether anything else has seen
that tensor.
Autograd knows which nodes a running pass will execute, so no graph is traversed.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from undertow.torch.claims.claims import claimed_parameters
from undertow.torch.modules.hooks import never_compiled, never_looked_into
from undertow.torch.pending.pending_tensors import passing

Added = torch.Tensor | None
NO_BACKWARD = -1  # autograd's number of the running backward pass if there is none


class FollowedBackward:
    """A backward pass whose end is observed: `on_end` is called with it at the end, but not if an exception stops it.

    Create it while that pass runs.  The end of a nested pass is a different one.
    """

    def __init__(self, on_end: Callable[[FollowedBackward], None]) -> None:
        self.number: int = torch._C._current_graph_task_id()
        callback = functools.partial(on_end, self)
        self._callback = weakref.ref(
            callback
        )  # autograd holds it until it has called it, or an exception stops the pass
        torch.autograd.Variable._execution_engine.queue_callback(callback)

    @property
    def is_gone(self) -> bool:
        """Whether the pass is over: it has ended, or an exception stopped it."""
        return self._callback() is None


def runs_backward() -> bool:
    """Whether this code runs inside a backward pass."""
    return torch._C._current_graph_task_id() != NO_BACKWARD


def find_accumulator(parameter: torch.Tensor) -> Any:
    """Return autograd's node that accumulates this parameter's gradient."""
    with torch.enable_grad():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def will_run(node: Any) -> bool:
    """Whether the running backward will execute this accumulation node; `torch.autograd.grad` executes none."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        return False  # raised if `torch.autograd.grad` was called for this parameter


def reaches_wrapped() -> bool:
    """Whether the running backward adds to gradients of a wrapped module; True if that is unknown.

    Call it from a hook of that backward.  The answer is the same on all ranks if they call backward for the same
    parameters.  It is unknown outside a backward pass, and if no module is wrapped: the script may average gradients
    itself.
    """
    parameters = claimed_parameters()
    is_known = bool(parameters) and runs_backward()
    return not is_known or any(map(_is_reached, parameters))


def _is_reached(parameter: torch.Tensor) -> bool:
    if not parameter.requires_grad or not parameter.is_leaf:
        return False
    with passing():  # the parameter's value, whose update may be pending, is not read
        node = find_accumulator(parameter)
    return will_run(node)


class GradientListener(Protocol):
    """Receiver of a call for each accumulated gradient, which is given by table and index."""

    def ready(self, table: int, index: int, added: Added, fresh: Added) -> None: ...


def follow_gradients(parameters: Sequence[torch.Tensor], listener: GradientListener, *, table: int) -> list[Any]:
    """Call `listener.ready` after each accumulation of one of these parameters' gradients.

    Returns autograd's nodes, to which the caller must refer so that their hooks stay.  The hooks refer to the listener
    weakly: if it is deleted, they do nothing.
    `added` is the tensor that was accumulated.  `fresh` is the same tensor, or None if other hooks of this node also
    receive it, because they may keep it and read it at any time.  Hooks that run earlier do not matter: autograd copies
    what they keep.
    """
    # On the nodes, not on the parameters, so that it runs after all of the user's hooks.
    nodes = [find_accumulator(parameter) for parameter in parameters]
    ref = weakref.ref(listener)
    for index, node in enumerate(nodes):
        _follow(node, ref, table, index)
    return nodes


def _follow(node: Any, ref: weakref.ref[GradientListener], table: int, index: int) -> None:
    def hook(inputs: Any, outputs: Any) -> None:
        _call_listener(ref, table, index, outputs[0] if outputs else None, handle)

    never_looked_into(hook)
    hook.keeps_nothing = True  # type: ignore[attr-defined]
    handle = node.register_hook(hook)


@never_compiled  # backward may run in compiled code
def _call_listener(ref: weakref.ref[GradientListener], table: int, index: int, added: Added, handle: Any) -> None:
    listener = ref()
    if listener is not None:
        listener.ready(table, index, added, added if _are_ours(handle) else None)


def _are_ours(handle: Any) -> bool:
    """Whether all hooks of this hook's node were created here."""
    hooks = handle.hooks_dict_ref()
    if hooks is None:
        return False
    return len(hooks) == 1 or all(hasattr(hook, "keeps_nothing") for hook in list(hooks.values()))
