"""Which way every gradient takes, and in slices of which size: the same on all ranks, changed between passes.

In: what this rank measures while it trains.  Out: gradients that are cut anew, and layers that hand over
parts instead, on all ranks in the same pass.
Nobody waits for it.  Every few passes the ranks report to each other, in a round like any other.  One
pass later, when all reports have long been there, each of them makes the same plan of them and makes
the new slices known to its engine; in the pass after that they are used.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from undertow.core.decoding import Decoder
from undertow.core.dtypes import DType
from undertow.core.flow import Contribution
from undertow.core.rounds import Op
from undertow.errors import PlanError
from undertow.plan.coordinator import Coordinator
from undertow.plan.inputs import ENOUGH, SameInputs
from undertow.plan.outlook import Outlook, Report, check_digests, multiply_alike
from undertow.plan.plan import Plan, check_fits
from undertow.plan.planner import NO_PROCESS_GROUP, describe_plan, exclude_factors
from undertow.plan.profile import Kind, Profile
from undertow.plan.scheme import Scheme
from undertow.plan.sizing import Sizes
from undertow.plan.slicing import TensorSpec
from undertow.runtime.group import Group
from undertow.runtime.waiting import Ticket
from undertow.torch.broadcast import URGENT
from undertow.torch.device import describe_arithmetic
from undertow.torch.factor_devices import (
    asks_for_factors,
    check_asked,
    find_asked,
    find_device_obstacle,
)
from undertow.torch.gradients import Gradients
from undertow.torch.layers import Layer, find_layers
from undertow.torch.links import measure_cluster
from undertow.torch.measuring import RowCounter, Survey
from undertow.torch.naming import name_some
from undertow.torch.switching import Switch, Ways
from undertow.torch.table import Table
from undertow.trace import notes
from undertow.trace.recorder import here

log = logging.getLogger("undertow")
_reports: Decoder[Report] = Decoder(Report, "the measurements of another rank")

PASSES = 4
# In so many passes at the start inputs are compared even if an accelerator has to be waited for.
YOUNG_PASSES = (ENOUGH + 2) * PASSES
# A slice size within this factor of the wished one is left as it is.
GOOD_ENOUGH = 1.6
# With fewer of the smallest slices than this, a model is not worth a plan.
WORTH_SLICES = 4
MOST_NAMED = 3  # gradients in a warning; more are counted

SAME_INPUTS = (
    "all %d workers train on the same inputs, step after step: nothing is gained over one worker. Give each worker its "
    "own part of the data: loader = undertow.torch.distribute(loader), or a torch.utils.data.DistributedSampler"
)


class Planning:
    """Of one wrapped module.  The policy is the name of one, or a plan that was given."""

    def __init__(
        self,
        group: Group,
        module: torch.nn.Module,
        policy: str | Plan,
        process_group: Any = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.coordinator: Coordinator | None = None  # since there is a plan
        self._group = group
        self._module = module
        self._process_group = process_group
        self._policy = policy
        self._clock = clock
        if policy == Scheme.ALLREDUCE.value and process_group is None:
            raise PlanError(NO_PROCESS_GROUP)
        self._outlook = None
        if isinstance(policy, str) and policy != Scheme.DENSE.value:
            self._outlook = Outlook(policy)
        label = f"the reports for the plan {_name(policy)!r}"
        self._table = Table(group, label, [TensorSpec("report", (), DType.BYTES, 0)], Op.GATHER)
        self._switch = Switch(group)
        self._ways: Ways | None = None  # None: as at the start
        self._gradients: list[Gradients] = []
        self._layers: dict[torch.Tensor, Layer] = {}
        self._obstacles: dict[torch.Tensor, str] = {}
        self._asked: dict[str, torch.Tensor] = {}  # parameters whose factors the policy asks for by name
        self._rows = RowCounter()
        self._passes = 0
        self._has_newcomers = False  # of which a plan that was given has not been followed yet
        self._survey: Survey | None = None
        self._profile: Profile | None = None  # measured, not yet reported
        self._wants_cluster = self._outlook is not None  # that it is measured and reported, once there is a profile
        self._rates_seen = 0
        self._inputs: int | None = None  # a digest of the last forward's
        self._same_inputs = SameInputs()
        self._report: Contribution | None = None  # on its way
        self._reported = Ticket(0)

    # What the passes say

    def check_devices(self, named: Mapping[str, torch.Tensor]) -> None:
        """`ConfigError` if the policy asks by name for factors of parameters on a device where they are not exact.

        Asked before these are adopted, and again before each forward: a module may be moved in between.
        """
        if asks_for_factors(self._policy):
            layers, obstacles = find_layers(self._module)
            linear: set[torch.Tensor] = {layer.weight for layer in layers if layer.kind is Kind.LINEAR}
            linear |= {weight for weight, reason in obstacles.items() if reason == find_device_obstacle(weight)}
            self._asked |= find_asked(self._policy, named, linear)
            check_asked(self._policy, self._asked)

    def adopt(self, gradients: Gradients) -> None:
        """These take part from now on."""
        self._gradients.append(gradients)
        names = gradients.names
        if isinstance(self._policy, Plan):
            self._has_newcomers = True
            check_fits(self._policy, {name: tuple(parameter.shape) for parameter, name in names.items()})
        elif self._outlook is None:
            return
        layers, obstacles = find_layers(self._module)
        for layer in layers:
            if layer.weight in names and layer.weight not in self._layers:
                self._layers[layer.weight] = layer
                self._rows.watch(layer, names[layer.weight])
        self._obstacles |= obstacles
        if self._group.rank == 0:
            _warn_of({names[parameter]: reason for parameter, reason in obstacles.items() if parameter in names})
        if self._outlook is not None and names:
            measure_cluster(self._group, gradients.parameters[0].device, self._process_group)
            self._survey = Survey(self._module, self._clock)

    def start_forward(self) -> bool:
        """A forward pass begins whose backward will be synchronised.  Whether nothing must be on its way in it."""
        check_asked(self._policy, self._asked)
        self._switch.swap_layers()
        if self._survey is None:
            return False
        self._survey.start_forward()
        return self._survey.is_measuring

    @property
    def wants_inputs(self) -> bool:
        """Whether the pass of this forward brings a report."""
        # In this order: compiled code that had read the number would be compiled anew in every step.
        return not torch.compiler.is_compiling() and self._passes % PASSES == PASSES - 1

    @property
    def is_young(self) -> bool:
        """Whether this is one of the first passes."""
        return self._passes < YOUNG_PASSES

    def see_inputs(self, digest: int | None) -> None:
        """What this forward is given."""
        self._inputs = digest

    def begin(self, *, has_gates: bool) -> None:
        """A pass is about to begin, and nothing of the last one is on its way."""
        if self._survey is not None:
            self._survey.start_backward()
        self._passes += 1
        self._rows.end_pass()
        if self._switch.is_prepared:
            self._ways = self._switch.change(self._layers)
        elif self._report is not None:
            self._group.waiters.wait_for(self._reported, "the reports for the plan")
            self._consider(self._read(self._report))
        elif self._has_newcomers or (self._passes % PASSES == 0 and not self._has_no_choice):
            self._tell(has_gates=has_gates)
        if self._passes % PASSES == PASSES - 1:
            for gradients in self._gradients:
                gradients.sample()

    def stand_by(self) -> None:
        """A pass that is planned by nobody: its rows are no more than those of any other."""
        self._rows.end_pass()

    def ready(self, parameter: torch.Tensor) -> None:
        """Backward has made this gradient."""
        if self._survey is not None:
            self._survey.ready(parameter)

    def end(self) -> None:
        """Backward has made them all."""
        if self._survey is None:
            return
        self._survey.end_backward()
        if self._survey.is_over:
            names: dict[torch.Tensor, str] = {}
            for one in self._gradients:
                names |= one.names
            self._profile = self._survey.make_profile(names, self._layers, self._obstacles)
            self._survey = None

    # Reports

    def _tell(self, *, has_gates: bool) -> None:
        cluster = None
        if self._wants_cluster and (self._profile is not None or self.coordinator is not None):
            # Measured when the first gradients were adopted; another time, for a link that has changed, now.
            is_new = self.coordinator is not None
            cluster = measure_cluster(self._group, self._device, self._process_group, again=is_new)
            self._wants_cluster = False
            if here.is_on:
                here.note(notes.Linked(here.clock(), cluster.bytes_per_s))
        report = Report(
            has_gates=has_gates,
            bytes_per_s=self._find_rate(),
            allreduce_bytes_per_s=self._allreduce_bytes_per_s,
            arithmetic=describe_arithmetic(self._device),
            cluster=cluster,
            profile=self._profile,
            rows=self._rows.take(),
            digests={name: digest for one in self._gradients for name, digest in one.find_digests().items()},
            inputs=self._inputs,
            obstacles=self._find_moved(),
            wholes=tuple(name for one in self._gradients for name in one.find_wholes()),
        )
        self._profile = self._inputs = None
        self._reported = Ticket(1)
        key = self._table.first.slices[0].spec.key
        body = np.frombuffer(msgspec.msgpack.encode(report), np.uint8)
        self._report = Contribution(key, body, None, 1, self._reported.answer, URGENT)
        self._group.contribute([self._report])

    def _read(self, report: Contribution) -> list[Report]:
        self._report = None
        reports = [_reports.decode(b"" if piece.array is None else piece.array.data) for piece in report.pieces]
        self._group.release([piece for rank, piece in enumerate(report.pieces) if rank != self._group.rank])
        return reports

    # Decisions: the same on all ranks

    def _consider(self, reports: Sequence[Report]) -> None:
        check_digests(reports)
        if self._same_inputs.compare([report.inputs for report in reports]) and self._group.rank == 0:
            log.warning(SAME_INPUTS, len(reports))
        coordinator = None
        if self._outlook is not None:
            coordinator = self._outlook.consider(reports)
            self._wants_cluster |= self._outlook.wants_cluster
        if isinstance(self._policy, Plan) and self._has_newcomers:
            coordinator = Coordinator(self._policy if multiply_alike(reports) else exclude_factors(self._policy))
        if coordinator is not None:
            self._follow(coordinator, reports)
        elif self._choose_bytes(reports) != self._slice_bytes:
            self._prepare(self.plan, self._choose_bytes(reports), reports)

    def _follow(self, coordinator: Coordinator, reports: Sequence[Report]) -> None:
        before = {} if self._ways is None else self._ways.schemes
        self.coordinator = coordinator
        if here.is_on:
            here.note(notes.Planned(here.clock(), coordinator.plan, coordinator.profile, coordinator.cluster))
            if coordinator.cluster is not None:  # as the plan sees the links, which may have shown something else since
                here.note(notes.Linked(here.clock(), coordinator.cluster.bytes_per_s))
        plan, slice_bytes = coordinator.plan, self._choose_bytes(reports)
        if _choose_schemes(plan) != before or slice_bytes != self._slice_bytes or self._has_newcomers:
            self._has_newcomers = False
            self._prepare(plan, slice_bytes, reports)
            if self._group.rank == 0:
                log.info("%s", describe_plan(plan))

    def _prepare(self, plan: Plan | None, slice_bytes: int, reports: Sequence[Report]) -> None:
        pieces = {} if plan is None else {c.tensor: c.push_bytes / max(1, plan.workers - 1) for c in plan.choices}
        schemes = {} if plan is None else _choose_schemes(plan)
        rate = _find_mean_rate(reports)
        credited = slice_bytes if rate is None else max(slice_bytes, self._group.sizes.fit_link(rate))
        self._switch.prepare(Ways(slice_bytes, credited, schemes, pieces), self._gradients, self._layers)

    def _choose_bytes(self, reports: Sequence[Report]) -> int:
        """The slice size that all links together ask for; the current one if that is near enough."""
        rate = _find_mean_rate(reports)
        current = self._slice_bytes
        if rate is None:
            return current  # nothing ever had to wait: any size does
        wished = self._group.sizes.choose(self._model_bytes, shards=self._group.size, bytes_per_s=rate)
        return wished if max(wished, current) > GOOD_ENOUGH * min(wished, current) else current

    # Figures

    def _find_rate(self) -> float | None:
        """Of the link since the last report; None if nothing had to wait."""
        rate, seen_before = self._group.rate, self._rates_seen
        self._rates_seen = rate.seen
        return rate.bytes_per_s if self._rates_seen != seen_before else None

    @property
    def plan(self) -> Plan | None:
        return None if self.coordinator is None else self.coordinator.plan

    @property
    def _slice_bytes(self) -> int:
        if self._ways is not None:
            return self._ways.slice_bytes
        return self._group.sizes.choose(self._model_bytes, shards=self._group.size)

    @property
    def _has_no_choice(self) -> bool:
        return self._policy == Scheme.DENSE.value and self._group.sizes.fixed > 0

    @property
    def _allreduce_bytes_per_s(self) -> float | None:
        rates = [one.reduction.bytes_per_s for one in self._gradients if one.reduction is not None]
        known = [rate for rate in rates if rate is not None]
        return min(known, default=None)

    def _find_moved(self) -> dict[str, str]:
        """Of linear layers that are on another device by now: why they have no other way any more."""
        names = {parameter: name for one in self._gradients for parameter, name in one.names.items()}
        return {
            names[weight]: reason
            for weight, layer in self._layers.items()
            if layer.kind is Kind.LINEAR and (reason := find_device_obstacle(weight))
        }

    @property
    def _model_bytes(self) -> int:
        return sum(one.table.size_bytes for one in self._gradients)

    @property
    def _device(self) -> torch.device:
        return next(one.parameters[0].device for one in self._gradients if one.parameters)


def _find_mean_rate(reports: Sequence[Report]) -> float | None:
    rates = [report.bytes_per_s for report in reports if report.bytes_per_s is not None]
    return sum(rates) / len(rates) if rates else None


def is_small(size_bytes: int, sizes: Sizes) -> bool:
    """Whether a model is not worth a plan."""
    return size_bytes < WORTH_SLICES * sizes.smallest


def _warn_of(obstacles: Mapping[str, str]) -> None:
    """One line for each reason, however many gradients it is the reason for."""
    for reason in dict.fromkeys(obstacles.values()):
        names = [name for name, other in obstacles.items() if other == reason]
        what = "gradient of %s travels" if len(names) == 1 else "gradients of %s travel"
        log.warning(f"the {what} whole: %s", name_some(names, MOST_NAMED), reason)


def _choose_schemes(plan: Plan) -> dict[str, Scheme]:
    return {name: scheme for name, scheme in plan.schemes.items() if scheme is not Scheme.DENSE}


def _name(policy: str | Plan) -> str:
    """The same for the same plan."""
    return policy if isinstance(policy, str) else f"{policy.policy} {zlib.crc32(policy.to_json()):08x}"
