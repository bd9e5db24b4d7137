"""The devices on which factors are exact: so far only the CPU.

In: weights.  Out: the reason why their factors cannot be used; `ConfigError` if a plan asks for them by name.
On other devices, activations and deltas are copied concurrently with the computation, which may overwrite their memory
in the meantime (a residual connection, a static input buffer), or may not have computed them yet (on one of the user's
own streams).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from undertow.errors import ConfigError
from undertow.plain_text import name_some
from undertow.plan.plan import Plan
from undertow.plan.scheme import Scheme

FACTORS = (Scheme.FACTORS, Scheme.FACTORS_TO_SHARD)
MOST_REFUSED = 10  # weights in an error; more are counted


def find_device(weight: torch.Tensor) -> torch.device:
    return weight.device


def find_device_obstacle(weight: torch.Tensor) -> str:
    """Return why the factors of a weight cannot be sent from its device; empty if they can."""
    device = find_device(weight)
    if device.type == "cpu":
        return ""
    return f"factors and factors-to-shard are not exact on {device} yet, only on the CPU"


def check_asked(policy: str | Plan, asked: Mapping[str, torch.Tensor]) -> None:
    """Raise `ConfigError` if any of these parameters, whose factors are asked for, is not on the CPU."""
    refused = {name: weight for name, weight in asked.items() if find_device_obstacle(weight)}
    if not refused:
        return
    devices = " and ".join(sorted({str(find_device(weight)) for weight in refused.values()}))
    where = f"{name_some(list(refused), MOST_REFUSED)}, which {'is' if len(refused) == 1 else 'are'} on {devices}"
    reason = "factors and factors-to-shard are so far exact only on the CPU"
    remedy = "the plan 'auto' or 'dense' (the argument plan=, or UNDERTOW_PLAN)"
    if isinstance(policy, Plan):
        raise ConfigError(
            f"the given plan sends factors of {where}: {reason}. Make a new plan with the model on that device, or use "
            f"{remedy}"
        )
    raise ConfigError(f"the plan {policy!r} asks for factors of {where}: {reason}. Use {remedy}")
