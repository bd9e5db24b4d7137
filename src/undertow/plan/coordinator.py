"""The coordinator's knowledge of a training run, asked as in the paper (Poseidon, ATC 2017).

In: a plan, and the figures that it was made of.  Out: `best_scheme(layer)`, `query(...)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from undertow.errors import PlanError
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Choice, Plan
from undertow.plan.profile import Profile
from undertow.plan.scheme import Scheme


class Coordinator:
    """Of one model.  A plan that was read from a file comes without profile and cluster."""

    def __init__(self, plan: Plan, profile: Profile | None = None, cluster: Cluster | None = None) -> None:
        self.plan = plan
        self.profile = profile
        self.cluster = cluster

    def best_scheme(self, layer: str) -> Scheme:
        """How the gradient of this layer's weight travels; a tensor's own name will do as well."""
        return self._find(layer).scheme

    def query(self, *properties: str) -> tuple[Any, ...]:
        """What is known, in the order of the questions; `properties` are of `PROPERTIES`."""
        return tuple(self._answer(name) for name in properties)

    def _answer(self, name: str) -> Any:
        if name not in PROPERTIES:
            raise PlanError(f"nobody knows {name!r}: ask for {', '.join(PROPERTIES)}")
        try:
            return PROPERTIES[name](self)
        except AttributeError:
            raise PlanError(f"{name!r} is not known: the plan was given, not made here") from None

    def _find(self, layer: str) -> Choice:
        """The largest of the layer's tensors."""
        own = [choice for choice in self.plan.choices if f"{choice.tensor}.".startswith(f"{layer}.")]
        if not own:
            raise PlanError(f"the plan has no layer {layer!r}")
        return max(own, key=_count_elements)


def _count_elements(choice: Choice) -> int:
    elements = 1
    for length in choice.shape:
        elements *= length
    return elements


# The shards are with the workers: there are as many servers.
PROPERTIES: dict[str, Callable[[Any], Any]] = {
    "workers": lambda of: of.plan.workers,
    "servers": lambda of: of.plan.workers,
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
