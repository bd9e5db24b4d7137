"""`--overlap` for optimizers of scripts that do not ask for it: their steps are put off as by `parallelize`.

In: the first step of each optimizer: it is complete by then.  Out: the same object; from the next step on its steps are
put off.  Where that is not possible they wait, which is said.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from undertow.errors import ConfigError
from undertow.torch.stepping import defer_steps, find_coupling

log = logging.getLogger("undertow")


def defer_all(*, speaks: bool) -> Callable[[], None]:
    """Put off the steps of all optimizers; returns what ends that for those that have not made one yet."""
    asked: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def ask(optimizer: Optimizer, arguments: Any, options: Any) -> None:
        if optimizer not in asked:
            asked.add(optimizer)
            _defer(optimizer, speaks=speaks)

    return register_optimizer_step_pre_hook(ask).remove


def _defer(optimizer: Optimizer, *, speaks: bool) -> None:
    reason = find_coupling(optimizer)
    if reason is None:
        try:
            defer_steps(optimizer, speaks=speaks)
        except ConfigError as error:
            reason = str(error)
    if reason is not None and speaks:
        log.warning("optimizer.step() waits for all gradients: %s", reason)
