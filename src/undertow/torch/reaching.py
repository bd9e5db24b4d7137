"""Whether a backward pass concerns other ranks: whether it reaches a parameter that they train, too.

In: the backward pass that runs now, in one of its hooks.  Out: a yes or no, which is the same on all ranks as long as
they call backward for the same parameters.  Autograd knows all nodes of a pass that runs, so no graph is walked.
"""

from __future__ import annotations

import torch

from undertow.torch.claims import claimed_parameters
from undertow.torch.closed import passing
from undertow.torch.passes import find_accumulator, will_run

NO_BACKWARD = -1  # the number of the running backward pass where there is none


def reaches_wrapped() -> bool:
    """Whether the running backward adds to gradients of a wrapped module; True where that cannot be known.

    Without a wrapper of ours nothing is known of what the script averages, and how; nor is it outside of a pass.
    """
    parameters = claimed_parameters()
    is_known = bool(parameters) and torch._C._current_graph_task_id() != NO_BACKWARD
    return not is_known or any(map(_is_reached, parameters))


def _is_reached(parameter: torch.Tensor) -> bool:
    if not parameter.requires_grad or not parameter.is_leaf:
        return False
    with passing():  # a parameter whose update is pending is not read
        node = find_accumulator(parameter)
    return will_run(node)
