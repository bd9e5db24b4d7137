"""The plan in force, and the figures behind it, with the questions of Poseidon's coordinator (ATC 2017).

In: a plan, and the profile and cluster that it was made of.  Out: `best_scheme(layer)`, `query(...)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from undertow.errors import PlanError
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Choice, Plan
from undertow.plan.profile import Profile
from undertow.plan.scheme import Scheme


class ActivePlan:
    """Plan of one model.  A plan that was given by the user comes without profile and cluster."""

    def __init__(self, plan: Plan, profile: Profile | None = None, cluster: Cluster | None = None) -> None:
        self.plan = plan
        self.profile = profile
        self.cluster = cluster

    def best_scheme(self, layer: str) -> Scheme:
        """Return the scheme of a layer's weight, or of a tensor with this name."""
        return self._find(layer).scheme

    def query(self, *properties: str) -> tuple[Any, ...]:
        """Return the values of these properties, in their order; `PROPERTIES` lists all."""
        return tuple(self._answer(name) for name in properties)

    def _answer(self, name: str) -> Any:
        if name not in PROPERTIES:
            raise PlanError(f"there is no property {name!r}: ask for {', '.join(PROPERTIES)}")
        try:
            return PROPERTIES[name](self)
        except AttributeError:
            raise PlanError(
                f"{name!r} is not known: this plan was given to undertow, which measured nothing for it"
            ) from None

    def _find(self, layer: str) -> Choice:
        """Return the choice for the largest of the layer's tensors."""
        own = [choice for choice in self.plan.choices if f"{choice.tensor}.".startswith(f"{layer}.")]
        if not own:
            raise PlanError(f"the plan has no layer {layer!r}")
        return max(own, key=lambda choice: math.prod(choice.shape))


PROPERTIES: dict[str, Callable[[Any], Any]] = {
    "workers": lambda of: of.plan.workers,
    "servers": lambda of: of.plan.servers,
    "policy": lambda of: of.plan.policy,
    "step_s": lambda of: of.plan.step_s,
    "compute_s": lambda of: of.plan.compute_s,
    "bytes_out": lambda of: of.plan.bytes_out,
    "tensors": lambda of: [choice.tensor for choice in of.plan.choices],
    "layers": lambda of: [layer.name for layer in of.profile.layers],
    "rows": lambda of: {tensor.name: tensor.rows for tensor in of.profile.tensors if tensor.rows},
    "bytes_per_s": lambda of: of.cluster.bytes_per_s,
    "latency_s": lambda of: of.cluster.latency_s,
    "flops_per_s": lambda of: of.cluster.flops_per_s,
}
