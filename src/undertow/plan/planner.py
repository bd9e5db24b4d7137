"""The planner: chooses the scheme of every tensor so that the step ends as early as possible.

In: a profile, a cluster, a policy.  Out: a frozen `Plan` with a reason for every tensor.
Pure: the same figures give the same plan.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from undertow.errors import PlanError
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Choice, Plan, read_plan
from undertow.plan.predict import find_extra_s, predict, predict_alone
from undertow.plan.profile import LayerKind, Profile, TensorProfile
from undertow.plan.scheme import Scheme, Traffic, count_traffic, find_break_even, list_schemes
from undertow.units import format_bytes, format_ms, format_percent

AUTO, POSEIDON = "auto", "poseidon"
POLICIES = (AUTO, POSEIDON, *(scheme.value for scheme in Scheme))
# A scheme that sends more bytes must save this share of the step, because predictions are no more exact than that.
WORTH = 0.002
# A search that does not start from the schemes with the fewest bytes must save this share, because it changes many
# tensors at once.
WORTH_MORE_BYTES = 0.01
# Torch's process group must save this share, because its rate was measured only once, with nothing else on the links.
WORTH_ANOTHER_SYSTEM = 0.05
# Schemes are compared at this share of the links' rate, so that a transfer does not count as hidden if that needs a
# full link without any disturbance.  With 90 % of the links in use, 16 emulated hosts took 1.14 times compute instead
# of 1.00.
PRUDENT_SHARE = 0.8
# Only this many tensors, the largest, are tried individually, because a plan is made between two steps.
MOST_MOVED = 24
UNLIKE = "hosts with different processors, libraries or numbers of threads would multiply factors differently"
NO_PROCESS_GROUP = "the plan 'allreduce' needs torch's process group"


def make_plan(profile: Profile, cluster: Cluster, *, policy: str = AUTO, has_gates: bool = True) -> Plan:
    """Return the plan for a policy: `auto` for the fastest, or the name of a rule or scheme."""
    return Planner(profile, cluster, has_gates=has_gates).plan(policy)


def choose_policy(wanted: str | os.PathLike[str] | Plan | None, default: str) -> str | Plan:
    """Return the name of a policy, or the plan that was given as an object or a file."""
    chosen = wanted or default
    if isinstance(chosen, Plan) or chosen in POLICIES:
        return chosen
    if not os.path.exists(chosen):
        raise PlanError(f"there is no plan {str(chosen)!r}: use one of {', '.join(POLICIES)} or the file of a plan")
    return read_plan(chosen)


def exclude_factors(plan: Plan) -> Plan:
    """Return a plan with dense gradients instead of factors, for hosts that multiply differently."""
    choices = tuple(
        msgspec.structs.replace(choice, scheme=Scheme.DENSE, reason=UNLIKE)
        if choice.scheme is Scheme.FACTORS
        else choice
        for choice in plan.choices
    )
    return msgspec.structs.replace(plan, choices=choices)


class Planner:
    """Planner for one model on one cluster."""

    def __init__(self, profile: Profile, cluster: Cluster, *, has_gates: bool = True) -> None:
        self._profile = profile
        self._cluster = cluster
        torchs = cluster.allreduce_bytes_per_s
        self._prudent = msgspec.structs.replace(
            cluster,
            bytes_per_s=PRUDENT_SHARE * cluster.bytes_per_s,
            allreduce_bytes_per_s=None if torchs is None else PRUDENT_SHARE * torchs,
        )
        self._has_gates = has_gates
        self._tensors = {tensor.name: tensor for tensor in profile.tensors}
        self._worth_s = WORTH * profile.compute_s

    def plan(self, policy: str) -> Plan:
        if policy not in POLICIES:
            raise PlanError(f"there is no plan {policy!r}: use one of {', '.join(POLICIES)}")
        if policy == Scheme.ALLREDUCE.value and self._cluster.allreduce_bytes_per_s is None:
            raise PlanError(NO_PROCESS_GROUP)
        schemes = self._choose(policy)
        return Plan(
            policy=policy,
            workers=self._cluster.workers,
            servers=self._cluster.servers,
            choices=tuple(
                Choice(
                    tensor=name,
                    shape=tensor.shape,
                    scheme=schemes[name],
                    bytes_out=self._bytes_out(tensor, schemes[name]),
                    push_bytes=self._count_traffic(tensor, schemes[name]).push_bytes,
                    alone_s=predict_alone(tensor, schemes[name], self._cluster),
                    reason=self._explain(tensor, schemes[name], policy),
                    break_even=find_break_even(tensor) if Scheme.FACTORS in list_schemes(tensor) else None,
                )
                for name, tensor in self._tensors.items()
            ),
            step_s=self._predict(schemes),
            compute_s=self._profile.compute_s,
            alone=self._predict_alone(),
        )

    # Policies

    def _choose(self, policy: str) -> dict[str, Scheme]:
        if policy == AUTO:
            return self._find_fastest()
        if policy == POSEIDON:
            return {name: self._poseidon(tensor) for name, tensor in self._tensors.items()}
        return self._use_alone(Scheme(policy))

    def _use_alone(self, wanted: Scheme) -> dict[str, Scheme]:
        """Return this scheme for each tensor for which it is possible, and dense for the others."""
        return {
            name: wanted if wanted in self._options(tensor) else Scheme.DENSE for name, tensor in self._tensors.items()
        }

    def _options(self, tensor: TensorProfile) -> list[Scheme]:
        if self._cluster.workers == 1:
            return [Scheme.DENSE]
        schemes = list_schemes(tensor)
        if not self._cluster.multiplies_alike:
            schemes = [scheme for scheme in schemes if scheme is not Scheme.FACTORS]
        has_group = self._cluster.allreduce_bytes_per_s is not None
        return schemes + [Scheme.ALLREDUCE] * (has_group and tensor.can_reduce)

    def _thrifty_options(self, tensor: TensorProfile) -> list[Scheme]:
        """Return the dense scheme, last, and before it those that send fewer bytes, in ascending order of bytes."""
        options = sorted(self._options(tensor), key=lambda scheme: self._bytes_out(tensor, scheme))
        return options[: options.index(Scheme.DENSE) + 1]

    def _poseidon(self, tensor: TensorProfile) -> Scheme:
        """Return the scheme by BestScheme of the paper (Algorithm 1, ATC 2017)."""
        if Scheme.FACTORS not in self._options(tensor):
            return Scheme.DENSE
        sent = [self._bytes_out(tensor, scheme) for scheme in (Scheme.FACTORS, Scheme.DENSE)]
        return Scheme.FACTORS if sent[0] <= sent[1] else Scheme.DENSE

    def _find_fastest(self) -> dict[str, Scheme]:
        """Search from several starts, changing one tensor at a time while the step gets shorter."""
        options = {name: self._thrifty_options(tensor) for name, tensor in self._tensors.items()}
        # The first start has the fewest bytes; it wins if no other saves enough.
        starts = [{name: allowed[0] for name, allowed in options.items()}]
        for wanted in (Scheme.DENSE, Scheme.FACTORS, Scheme.FACTORS_TO_SHARD):
            starts.append({name: wanted if wanted in allowed else allowed[0] for name, allowed in options.items()})
        best, best_s = starts[0], self._compare(starts[0])
        for start in starts:
            schemes, step_s = self._improve(start, options)
            worth_s = self._worth_s if start is starts[0] else WORTH_MORE_BYTES * self._profile.compute_s
            if step_s < best_s - worth_s:
                best, best_s = schemes, step_s
        return self._try_allreduce(best, best_s)

    def _improve(
        self, schemes: dict[str, Scheme], options: Mapping[str, Sequence[Scheme]]
    ) -> tuple[dict[str, Scheme], float]:
        best_s = self._compare(schemes)
        largest = sorted(self._tensors, key=lambda name: self._tensors[name].size_bytes, reverse=True)
        movable = [name for name in largest if len(options[name]) > 1]
        changes = [(name, scheme) for name in movable[:MOST_MOVED] for scheme in options[name]]
        improved = True
        while improved:
            improved = False
            for name, scheme in changes:
                changed = {**schemes, name: scheme}
                step_s = best_s if scheme is schemes[name] else self._compare(changed)
                if step_s < best_s - self._worth_s:
                    schemes, best_s, improved = changed, step_s, True
        return schemes, best_s

    def _try_allreduce(self, schemes: dict[str, Scheme], best_s: float) -> dict[str, Scheme]:
        """Use torch's process group for all dense tensors if that is worth it.

        It is all or none of them, because two systems at once would compete for the links.
        """
        if self._cluster.allreduce_bytes_per_s is None:
            return schemes
        changed: dict[str, Scheme] = {
            name: Scheme.ALLREDUCE if scheme is Scheme.DENSE and self._tensors[name].can_reduce else scheme
            for name, scheme in schemes.items()
        }
        return changed if self._compare(changed) < (1 - WORTH_ANOTHER_SYSTEM) * best_s else schemes

    # Figures

    def _predict(self, schemes: Mapping[str, Scheme]) -> float:
        return predict(self._profile, self._cluster, schemes, has_gates=self._has_gates)

    def _compare(self, schemes: Mapping[str, Scheme]) -> float:
        """Predict the step on slower links (see `PRUDENT_SHARE`), by which schemes are compared."""
        return predict(self._profile, self._prudent, schemes, has_gates=self._has_gates)

    def _bytes_out(self, tensor: TensorProfile, scheme: Scheme) -> float:
        return self._count_traffic(tensor, scheme).bytes_out

    def _count_traffic(self, tensor: TensorProfile, scheme: Scheme) -> Traffic:
        return count_traffic(tensor, scheme, workers=self._cluster.workers, servers=self._cluster.servers)

    def _predict_alone(self) -> dict[str, float]:
        chosen = {wanted: self._use_alone(wanted) for wanted in Scheme}
        return {wanted.value: self._predict(alone) for wanted, alone in chosen.items() if wanted in alone.values()}

    # Reasons

    def _explain(self, tensor: TensorProfile, chosen: Scheme, policy: str) -> str:
        if policy == POSEIDON:
            return self._explain_poseidon(tensor)
        if policy != AUTO and chosen.value == policy:
            return "as requested"
        if policy == Scheme.FACTORS.value and not self._cluster.multiplies_alike:
            return UNLIKE
        if policy != AUTO:
            return tensor.obstacle or f"{policy} is not possible"
        if chosen is Scheme.DENSE:
            return self._explain_dense(tensor)
        if chosen is Scheme.ALLREDUCE:
            return "torch's process group is predicted to be faster"
        dense_bytes = self._bytes_out(tensor, Scheme.DENSE)
        sent = f"{format_bytes(self._bytes_out(tensor, chosen))} instead of {format_bytes(dense_bytes)}"
        if chosen is Scheme.ROWS:
            return f"{sent}: {tensor.rows:.0f} of {tensor.shape[0]} rows are touched"
        if chosen is Scheme.FACTORS_TO_SHARD:
            return f"{sent} with K = {tensor.rows:.0f}; the shards multiply"
        extra_s = find_extra_s(tensor, chosen, self._cluster)
        return f"{sent} with K = {tensor.rows:.0f}; the product takes {format_ms(extra_s)} more"

    def _explain_dense(self, tensor: TensorProfile) -> str:
        others = [scheme for scheme in self._options(tensor) if scheme not in (Scheme.DENSE, Scheme.ALLREDUCE)]
        if self._cluster.workers == 1:
            return "one worker sends nothing"
        if not others:
            return tensor.obstacle or _ONLY_DENSE[tensor.kind]
        best = min(others, key=lambda scheme: self._bytes_out(tensor, scheme))
        ratio = self._bytes_out(tensor, best) / self._bytes_out(tensor, Scheme.DENSE)
        if ratio >= 1:
            name = "K" if tensor.kind is LayerKind.LINEAR else "rows"
            return f"{best.value} would send {ratio:.1f} times as much ({name} = {tensor.rows:.0f})"
        extra_s = find_extra_s(tensor, best, self._cluster)
        work = f", {format_ms(extra_s)}," if extra_s > 0 else ""
        return (
            f"{best.value} would send {format_percent(ratio)} as much, but the work{work} would cost more than it saves"
        )

    def _explain_poseidon(self, tensor: TensorProfile) -> str:
        if tensor.kind is not LayerKind.LINEAR or not tensor.rows:
            return tensor.obstacle or "not a fully connected layer"
        if not self._cluster.multiplies_alike:
            return UNLIKE
        sign = "within" if self._poseidon(tensor) is Scheme.FACTORS else "beyond"
        return f"{self._cluster.workers} workers are {sign} the break-even of P* = {find_break_even(tensor):.0f}"


_ONLY_DENSE = {
    LayerKind.CONV: "a convolution has no other lossless scheme",
    LayerKind.LSTM: "a recurrent layer has no other lossless scheme",
    LayerKind.LINEAR: "a vector has no other lossless scheme",
    LayerKind.EMBEDDING: "its rows were not counted",
    LayerKind.OTHER: "no other lossless scheme",
}


def describe_plan(plan: Plan) -> str:
    """Describe a plan in one line for a log."""
    by_scheme: dict[str, list[Choice]] = {}
    for choice in plan.choices:
        by_scheme.setdefault(choice.scheme.value, []).append(choice)
    counts = ", ".join(
        f"{len(choices)} {name} {format_bytes(sum(choice.bytes_out for choice in choices))}"
        for name, choices in by_scheme.items()
    )
    return f"plan {plan.policy}: {counts} out per step; predicted step {format_ms(plan.step_s)}"
