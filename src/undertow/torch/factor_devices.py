"""The devices on which factors are exact: the CPU only, so far.

In: weights.  Out: in words why their factors do not travel; `ConfigError` where a plan asks for them by name.
Elsewhere activations and deltas are copied beside the computation, which may write to their memory meanwhile
(a residual connection, a static input buffer), or may not have made them yet (a stream of the user's own).
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch

from undertow.errors import ConfigError
from undertow.plan.plan import Plan
from undertow.plan.scheme import Scheme
from undertow.torch.naming import name_some

FACTORS = (Scheme.FACTORS, Scheme.FACTORS_TO_SHARD)
MOST_REFUSED = 10  # weights in an error; more are counted


def find_device(weight: torch.Tensor) -> torch.device:
    return weight.device


def find_device_obstacle(weight: torch.Tensor) -> str:
    """Says why the factors of a weight cannot travel from the device that it is on; empty if they can."""
    device = find_device(weight)
    if device.type == "cpu":
        return ""
    return f"on {device} factors and factors-to-shard are not exact yet; on the CPU they are"


def asks_for_factors(policy: str | Plan) -> bool:
    """Whether a policy names factors or factors-to-shard, so that nothing else will do."""
    if isinstance(policy, Plan):
        return any(choice.scheme in FACTORS for choice in policy.choices)
    return policy in [scheme.value for scheme in FACTORS]


def find_asked(
    policy: str | Plan, named: Mapping[str, torch.Tensor], linear: Container[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The parameters whose factors a policy asks for: those that a plan names, or all weights of linear layers."""
    if isinstance(policy, Plan):
        schemes = policy.schemes
        return {name: parameter for name, parameter in named.items() if schemes.get(name) in FACTORS}
    return {name: parameter for name, parameter in named.items() if parameter in linear}


def check_asked(policy: str | Plan, asked: Mapping[str, torch.Tensor]) -> None:
    """Raises `ConfigError` if some of these parameters, whose factors are asked for, are on another device."""
    refused = {name: weight for name, weight in asked.items() if find_device_obstacle(weight)}
    if not refused:
        return
    devices = " and ".join(sorted({str(find_device(weight)) for weight in refused.values()}))
    where = f"{name_some(list(refused), MOST_REFUSED)}, which {'is' if len(refused) == 1 else 'are'} on {devices}"
    reason = "factors and factors-to-shard are exact on the CPU only, so far"
    remedy = "the plan 'auto' or 'dense' (the argument plan=, or UNDERTOW_PLAN)"
    if isinstance(policy, Plan):
        raise ConfigError(
            f"the given plan sends factors of {where}: {reason}. Make the plan again where the model is on that "
            f"device, or use {remedy}"
        )
    raise ConfigError(f"the plan {policy!r} asks for factors of {where}: {reason}. Use {remedy}")
