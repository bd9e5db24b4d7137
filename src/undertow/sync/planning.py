"""Plans a model's schemes and slice size while it trains: the same on all ranks, changed between passes.

In: measurements of the frontend's probe on this rank.  Out: new layouts of the tables, and layers that hand over
factors, on all ranks in the same pass.
No worker waits for planning.  Every few passes the ranks exchange reports in an ordinary round.  One pass later, when
all reports have arrived, each rank computes the same plan from them and registers the new slices with its engine; they
are used in the pass after that.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import msgspec

from undertow.decoding import Decoder
from undertow.engine.interface import Group
from undertow.errors import PlanError
from undertow.plain_text import name_some
from undertow.plan.active_plan import ActivePlan
from undertow.plan.cluster import Cluster
from undertow.plan.inputs import ENOUGH, SameInputs
from undertow.plan.plan import Plan, check_fits
from undertow.plan.planner import NO_PROCESS_GROUP, describe_plan, exclude_factors
from undertow.plan.profile import Profile
from undertow.plan.replanner import PASSES, RankReport, Replanner, check_digests, multiply_alike
from undertow.plan.scheme import Scheme
from undertow.plan.slice_plan import SlicePlan, make_slice_plan
from undertow.sizing import Sizes
from undertow.sync.broadcast import ByteGather
from undertow.sync.gradient_table import GradientTable
from undertow.sync.plan_switch import PlanSwitch
from undertow.tracing import events
from undertow.tracing.recorder import process_recorder

log = logging.getLogger("undertow")
_report_decoder: Decoder[RankReport] = Decoder(RankReport, "the measurements of another rank")

# The first passes, in which inputs are compared even if that means waiting for an accelerator.
EARLY_PASSES = (ENOUGH + 2) * PASSES
# A slice size within this factor of the best one is kept.
GOOD_ENOUGH = 1.6
# A model with fewer of the smallest slices than this is not worth planning.
FEWEST_SLICES = 4
MOST_NAMED = 3  # gradients in a warning; more are counted

SAME_INPUTS = "all %d workers train on the same inputs in every step, which gains nothing over one worker. %s"


class ModelProbe(Protocol):
    """The frontend's measurements of one model, for the planner.  Names are those of the tables' tensors."""

    @property
    def has_process_group(self) -> bool:
        """Whether the framework has a process group of the same workers."""

    def find_layers(self, gradients: GradientTable) -> Mapping[str, str]:
        """Let suitable layers of this table hand over factors; return why similar ones cannot, by tensor name."""

    def measure_cluster(self, *, again: bool = False) -> Cluster:
        """Measure links and devices together with all other ranks; see `links.measure_cluster`."""

    def start_survey(self) -> None:
        """Measure the times of all layers in the next passes."""

    def start_forward(self) -> bool:
        """Begin a forward pass; return whether it is measured, so that nothing else may be in flight."""

    def start_backward(self) -> None:
        """Begin a planned backward pass."""

    def skip_backward(self) -> None:
        """Begin a backward pass that is not planned."""

    def end_backward(self) -> None:
        """End a planned backward pass: all gradients are computed."""

    def take_profile(self) -> Profile | None:
        """Return the profile of a survey that has ended since the last call."""

    def take_rows(self) -> dict[str, float]:
        """Return K, the rows of each factored tensor in an average pass since the last call."""

    def find_obstacles(self) -> dict[str, str]:
        """Return why tensors can no longer be sent as factors, by name."""

    def describe_arithmetic(self) -> str:
        """Return what the bits of a matrix product depend on."""


class Planning:
    """The planning of one model.  `policy` is the name of a policy, or a given plan."""

    # The advice in messages about workers with the same inputs, and about a plan that needs a process group.
    INPUTS_REMEDY: ClassVar[str] = "Give each worker its own part of the data"
    PROCESS_GROUP_REMEDY: ClassVar[str] = "Use another plan"

    def __init__(self, group: Group, policy: str | Plan, probe: ModelProbe) -> None:
        self.active: ActivePlan | None = None  # None until there is a plan
        self._group = group
        self._policy = policy
        self._probe = probe
        if policy == Scheme.ALLREDUCE.value and not probe.has_process_group:
            raise PlanError(f"{NO_PROCESS_GROUP}. {self.PROCESS_GROUP_REMEDY}")
        self._replanner = None
        if isinstance(policy, str) and policy != Scheme.DENSE.value:
            self._replanner = Replanner(policy)
        self._reports = ByteGather(group, f"the reports for the plan {_name(policy)!r}")
        self._switch = PlanSwitch(group)
        self._slice_plan: SlicePlan | None = None  # None: the first layout
        self._tables: list[GradientTable] = []
        self._passes = 0
        self._has_new_tables = False  # tables to which the given plan has not been applied yet
        self._wants_cluster = self._replanner is not None  # measure and report it once there is a profile
        self._rates_seen = 0
        self._inputs: int | None = None  # the digest of the last forward's inputs
        self._same_inputs = SameInputs()

    # Calls of the frontend

    def adopt(self, gradients: GradientTable) -> None:
        """Add a table to the plan."""
        self._tables.append(gradients)
        if isinstance(self._policy, Plan):
            self._has_new_tables = True
            check_fits(self._policy, {spec.name: spec.shape for spec in gradients.table.specs})
        elif self._replanner is None:
            return
        obstacles = self._probe.find_layers(gradients)
        if self._group.rank == 0:
            _warn_of_obstacles(obstacles)
        if self._replanner is not None and len(gradients):
            self._probe.measure_cluster()
            self._probe.start_survey()

    def start_forward(self) -> bool:
        """Begin a forward pass that will be synchronised; return whether nothing may be in flight during it."""
        self._switch.change_layers()
        return self._probe.start_forward()

    @property
    def wants_inputs(self) -> bool:
        """Whether this rank reports in the pass of this forward."""
        return self._passes % PASSES == PASSES - 1

    @property
    def is_early(self) -> bool:
        """Whether this is one of the first passes."""
        return self._passes < EARLY_PASSES

    def note_inputs(self, digest: int | None) -> None:
        """Remember the digest of this forward's inputs."""
        self._inputs = digest

    def begin(self, *, has_gates: bool) -> None:
        """Begin a backward pass; nothing of the previous one is in flight."""
        self._probe.start_backward()
        self._passes += 1
        if self._switch.is_prepared:
            self._slice_plan = self._switch.change()
        elif self._reports.is_sent:
            bodies = self._reports.receive("the reports for the plan")
            self._consider([_report_decoder.decode(body) for body in bodies])
        elif self._has_new_tables or (self._passes % PASSES == 0 and not self._has_no_choice):
            self._send_report(has_gates=has_gates)
        if self._passes % PASSES == PASSES - 1:
            for gradients in self._tables:
                gradients.sample_results()

    def skip(self) -> None:
        """Begin a backward pass that is not planned."""
        self._probe.skip_backward()

    def end(self) -> None:
        """End a backward pass: all gradients are computed."""
        self._probe.end_backward()

    # Reports

    def _send_report(self, *, has_gates: bool) -> None:
        cluster, profile = None, self._probe.take_profile()
        if self._wants_cluster and (profile is not None or self.active is not None):
            # First measured when the first table was adopted, and again here if a link has changed.
            cluster = self._probe.measure_cluster(again=self.active is not None)
            self._wants_cluster = False
            if process_recorder.is_on:
                process_recorder.record(events.Linked(process_recorder.clock(), cluster.bytes_per_s))
        report = RankReport(
            has_gates=has_gates,
            bytes_per_s=self._find_rate(),
            allreduce_bytes_per_s=self._allreduce_bytes_per_s,
            arithmetic=self._probe.describe_arithmetic(),
            cluster=cluster,
            profile=profile,
            rows=self._probe.take_rows(),
            digests={name: digest for one in self._tables for name, digest in one.find_digests().items()},
            inputs=self._inputs,
            obstacles=self._probe.find_obstacles(),
            wholes=tuple(name for one in self._tables for name in one.find_wholes()),
        )
        self._inputs = None
        self._reports.send(msgspec.msgpack.encode(report))

    # Decisions: the same on all ranks

    def _consider(self, reports: Sequence[RankReport]) -> None:
        check_digests(reports)
        if self._same_inputs.compare([report.inputs for report in reports]) and self._group.rank == 0:
            log.warning(SAME_INPUTS, len(reports), self.INPUTS_REMEDY)
        active = None
        if self._replanner is not None:
            active = self._replanner.consider(reports)
            self._wants_cluster |= self._replanner.wants_cluster
        if isinstance(self._policy, Plan) and self._has_new_tables:
            active = ActivePlan(self._policy if multiply_alike(reports) else exclude_factors(self._policy))
        if active is not None:
            self._follow(active, reports)
        elif self._choose_bytes(reports) != self._slice_bytes:
            self._prepare(self.plan, self._choose_bytes(reports), reports)

    def _follow(self, active: ActivePlan, reports: Sequence[RankReport]) -> None:
        before = {} if self._slice_plan is None else self._slice_plan.schemes
        self.active = active
        if process_recorder.is_on:
            process_recorder.record(
                events.Planned(process_recorder.clock(), active.plan, active.profile, active.cluster)
            )
            if active.cluster is not None:  # the rate that the plan assumes, which may differ from the latest one
                process_recorder.record(events.Linked(process_recorder.clock(), active.cluster.bytes_per_s))
        plan, slice_bytes = active.plan, self._choose_bytes(reports)
        if plan.other_schemes != before or slice_bytes != self._slice_bytes or self._has_new_tables:
            self._has_new_tables = False
            self._prepare(plan, slice_bytes, reports)
            if self._group.rank == 0:
                log.info("%s", describe_plan(plan))

    def _prepare(self, plan: Plan | None, slice_bytes: int, reports: Sequence[RankReport]) -> None:
        rate = _find_mean_rate(reports)
        slice_plan = make_slice_plan(plan, slice_bytes, sizes=self._group.shape.sizes, bytes_per_s=rate)
        self._switch.prepare(slice_plan, self._tables)

    def _choose_bytes(self, reports: Sequence[RankReport]) -> int:
        """Return the best slice size for all links together, or the current one if it is close enough."""
        rate = _find_mean_rate(reports)
        current = self._slice_bytes
        if rate is None:
            return current  # nothing ever had to wait, so any size will do
        best = self._group.shape.sizes.choose(self._model_bytes, shards=self._group.shape.shards, bytes_per_s=rate)
        return best if max(best, current) > GOOD_ENOUGH * min(best, current) else current

    # Figures

    def _find_rate(self) -> float | None:
        """Return the rate of the link since the last report; None if nothing had to wait for it."""
        rate, seen_before = self._group.rate, self._rates_seen
        self._rates_seen = rate.seen
        return rate.bytes_per_s if self._rates_seen != seen_before else None

    @property
    def plan(self) -> Plan | None:
        return None if self.active is None else self.active.plan

    @property
    def _slice_bytes(self) -> int:
        if self._slice_plan is not None:
            return self._slice_plan.slice_bytes
        return self._group.shape.sizes.choose(self._model_bytes, shards=self._group.shape.shards)

    @property
    def _has_no_choice(self) -> bool:
        return self._policy == Scheme.DENSE.value and self._group.shape.sizes.fixed > 0

    @property
    def _allreduce_bytes_per_s(self) -> float | None:
        rates = [one.allreduce_bytes_per_s for one in self._tables]
        return min((rate for rate in rates if rate is not None), default=None)

    @property
    def _model_bytes(self) -> int:
        return sum(one.table.size_bytes for one in self._tables)


def _find_mean_rate(reports: Sequence[RankReport]) -> float | None:
    rates = [report.bytes_per_s for report in reports if report.bytes_per_s is not None]
    return sum(rates) / len(rates) if rates else None


def is_small(size_bytes: int, sizes: Sizes) -> bool:
    """Whether a model is too small to be worth planning."""
    return size_bytes < FEWEST_SLICES * sizes.smallest


def _warn_of_obstacles(obstacles: Mapping[str, str]) -> None:
    """Log one line per reason, however many gradients it applies to."""
    for reason in dict.fromkeys(obstacles.values()):
        names = [name for name, other in obstacles.items() if other == reason]
        what = "gradient of %s is" if len(names) == 1 else "gradients of %s are"
        log.warning(f"the {what} sent whole: %s", name_some(names, MOST_NAMED), reason)


def _name(policy: str | Plan) -> str:
    """Return a name that is the same on all ranks if and only if their plans are."""
    return policy if isinstance(policy, str) else f"{policy.policy} {zlib.crc32(policy.to_json()):08x}"
