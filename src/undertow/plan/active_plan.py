"""The plan in force and the figures behind it, with the queries of Poseidon's coordinator (ATC 2017).

In: a plan, and the profile and cluster that it was made from.  Out: `best_scheme(layer)`, `query(...)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from undertow.errors import PlanError
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Plan
from undertow.plan.profile import Profile
from undertow.plan.scheme import Scheme


class ActivePlan:
    """Plan of one model.  A plan given by the user has neither profile nor cluster."""

    def __init__(self, plan: Plan, profile: Profile | None = None, cluster: Cluster | None = None) -> None:
        self.plan = plan
        self.profile = profile
        self.cluster = cluster

    def best_scheme(self, layer: str) -> Scheme:
        """Return the scheme of the largest of a layer's tensors, or of a tensor with this name."""
        own = [choice for choice in self.plan.choices if f"{choice.tensor}.".startswith(f"{layer}.")]
        if not own:
            raise PlanError(f"the plan has no layer {layer!r}")
        return max(own, key=lambda choice: math.prod(choice.shape)).scheme

    def query(self, *properties: str) -> tuple[Any, ...]:
        """Return the values of these properties, in the given order.  `PROPERTIES` lists all properties."""
        return tuple(self._answer(name) for name in properties)

    def _answer(self, name: str) -> Any:
        if name not in PROPERTIES:
            raise PlanError(f"there is no property {name!r}: use {', '.join(PROPERTIES)}")
        try:
            return PROPERTIES[name](self)
        except AttributeError:
            raise PlanError(
                f"{name!r} is not known: this plan was given to undertow, which made no measurements for it"
            ) from None


PROPERTIES: dict[str, Callable[[Any], Any]] = {
    "workers": lambda active: active.plan.workers,
    "servers": lambda active: active.plan.servers,
    "policy": lambda active: active.plan.policy,
    "step_s": lambda active: active.plan.step_s,
    "compute_s": lambda active: active.plan.compute_s,
    "bytes_out": lambda active: active.plan.bytes_out,
    "tensors": lambda active: [choice.tensor for choice in active.plan.choices],
    "layers": lambda active: [layer.name for layer in active.profile.layers],
    "rows": lambda active: {tensor.name: tensor.rows for tensor in active.profile.tensors if tensor.rows},
    "bytes_per_s": lambda active: active.cluster.bytes_per_s,
    "latency_s": lambda active: active.cluster.latency_s,
    "flops_per_s": lambda active: active.cluster.flops_per_s,
}
