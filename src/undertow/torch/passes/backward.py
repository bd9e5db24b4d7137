"""The backward pass that runs now, as autograd tells of it.

In: autograd's numbers, nodes and callbacks.  Out: whether a backward runs, what it will add to, and when it ends; and a
call for each gradient that it has added to, with what it has added, and whether anything else has seen that tensor.
Autograd knows which nodes a running pass will execute, so no graph is walked.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from undertow.torch.claims.claims import claimed_parameters
from undertow.torch.gates.pending_tensors import passing
from undertow.torch.hooks import never_compiled, never_looked_into

Added = torch.Tensor | None
NO_BACKWARD = -1  # the number of the running backward pass where there is none


class FollowedBackward:
    """A backward pass whose end is noticed: `on_end` is called with it then, and never if an exception breaks it off.

    Made while that pass runs.  A pass that is nested in it has another end.
    """

    def __init__(self, on_end: Callable[[FollowedBackward], None]) -> None:
        self.number: int = torch._C._current_graph_task_id()
        leave = functools.partial(on_end, self)
        self._held = weakref.ref(leave)  # by autograd, until it has called it or the pass is broken off
        torch.autograd.Variable._execution_engine.queue_callback(leave)

    @property
    def is_gone(self) -> bool:
        """Whether autograd has let go of it: it has ended or was broken off."""
        return self._held() is None


def runs_backward() -> bool:
    """Whether autograd has called what runs now."""
    return torch._C._current_graph_task_id() != NO_BACKWARD


def find_accumulator(parameter: torch.Tensor) -> Any:
    """Return autograd's node that adds to this parameter's gradient."""
    with torch.enable_grad():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def will_run(node: Any) -> bool:
    """Whether this backward adds to the parameter's gradient; `torch.autograd.grad` does not."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        return False  # torch's answer where `torch.autograd.grad` asks for this very parameter


def reaches_wrapped() -> bool:
    """Whether the running backward adds to gradients of a wrapped module; True where that is unknown.

    Asked from one of its hooks.  The answer is the same on all ranks if they call backward for the same parameters.
    It is unknown outside of a backward pass, and where no module is wrapped: the script may average gradients itself.
    """
    parameters = claimed_parameters()
    is_known = bool(parameters) and runs_backward()
    return not is_known or any(map(_is_reached, parameters))


def _is_reached(parameter: torch.Tensor) -> bool:
    if not parameter.requires_grad or not parameter.is_leaf:
        return False
    with passing():  # nothing is read of a parameter whose update is pending
        node = find_accumulator(parameter)
    return will_run(node)


class GradientListener(Protocol):
    """Receiver of the calls about gradients, which are given by table and index."""

    def ready(self, table: int, index: int, added: Added, fresh: Added) -> None: ...


def follow_gradients(parameters: Sequence[torch.Tensor], listener: GradientListener, *, table: int) -> list[Any]:
    """Call `listener.ready` after each addition to one of these parameters' gradients.

    Return autograd's nodes, which must be held so that the hooks on them stay.  The hooks hold the listener weakly: one
    that is gone leaves dead hooks behind.
    `fresh` is `added` again, or None where other hooks of this node get the tensor as well: they may keep it and read
    it at any time.  Hooks that run earlier do not matter: autograd copies what they keep.
    """
    # On the nodes, not on the parameters: after all hooks that users put there.
    nodes = [find_accumulator(parameter) for parameter in parameters]
    ref = weakref.ref(listener)
    for index, node in enumerate(nodes):
        _follow(node, ref, table, index)
    return nodes


def _follow(node: Any, ref: weakref.ref[GradientListener], table: int, index: int) -> None:
    def hook(inputs: Any, outputs: Any) -> None:
        _tell(ref, table, index, outputs[0] if outputs else None, handle)

    never_looked_into(hook)
    hook.keeps_nothing = True  # type: ignore[attr-defined]
    handle = node.register_hook(hook)


@never_compiled  # where backward runs in compiled code
def _tell(ref: weakref.ref[GradientListener], table: int, index: int, added: Added, handle: Any) -> None:
    listener = ref()
    if listener is not None:
        listener.ready(table, index, added, added if _are_ours(handle) else None)


def _are_ours(handle: Any) -> bool:
    """Whether all hooks of the node that this one is on are made here."""
    hooks = handle.hooks_dict_ref()
    if hooks is None:
        return False
    return len(hooks) == 1 or all(hasattr(hook, "keeps_nothing") for hook in list(hooks.values()))
