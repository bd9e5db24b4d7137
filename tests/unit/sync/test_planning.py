"""Planning: when ranks report, when a plan is prepared and when it is used; and what a user is told."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.support.fake_group import FakeGroup
from tests.support.numpy_frontend import NumpyGradients, make_layers
from undertow.errors import PlanError
from undertow.plan.cluster import Cluster
from undertow.plan.inputs import ENOUGH
from undertow.plan.plan import Choice, Plan
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile
from undertow.plan.replanner import PASSES
from undertow.plan.scheme import Scheme
from undertow.sizing import Sizes
from undertow.sync.planning import EARLY_PASSES, FEWEST_SLICES, Planning, is_small

WIDTHS = (64, 64, 64)
SIZES = Sizes(smallest=1024, largest=16384)
# Products cost next to nothing, and links are slow: factors win.
CLUSTER = Cluster(workers=2, bytes_per_s=1e6, flops_per_s=1e12, shard_flops_per_s=1e12)


class FakeProbe:
    """Measurements as a test wants them; `calls` are what was asked."""

    def __init__(self, *, has_process_group: bool = False) -> None:
        self.has_process_group = has_process_group
        self.calls: list[str] = []
        self.arithmetic = "one processor"
        self.reasons: Mapping[str, str] = {}
        self.profile: Profile | None = None

    def find_layers(self, gradients: Any) -> Mapping[str, str]:
        return self.reasons

    def measure_cluster(self, *, again: bool = False) -> Cluster:
        self.calls.append("measure again" if again else "measure")
        return CLUSTER

    def start_survey(self) -> None:
        self.calls.append("survey")

    def start_forward(self) -> bool:
        return False

    def start_backward(self) -> None:
        self.calls.append("planned")

    def skip_backward(self) -> None:
        self.calls.append("skipped")

    def end_backward(self) -> None: ...

    def take_profile(self) -> Profile | None:
        taken, self.profile = self.profile, None
        return taken

    def take_rows(self) -> dict[str, float]:
        return {f"layer {number}.weight": 2.0 for number in range(2)}

    def find_obstacles(self) -> dict[str, str]:
        return {}

    def describe_arithmetic(self) -> str:
        return self.arithmetic


def profile_layers() -> Profile:
    def make_layer(number: int) -> LayerProfile:
        weight = TensorProfile(name=f"layer {number}.weight", shape=(64, 64), kind=LayerKind.LINEAR, rows=2.0)
        bias = TensorProfile(name=f"layer {number}.bias", shape=(64,))
        return LayerProfile(name=f"layer {number}", tensors=(weight, bias), forward_s=1e-4, backward_s=1e-4)

    return Profile(layers=tuple(map(make_layer, range(2))))


def give_plan(**schemes: Scheme) -> Plan:
    """A plan that a user gives; `w0` and `w1` are the weights of the layers."""
    choices = [
        Choice(
            tensor=f"layer {number}.{kind}",
            shape=(64, 64) if kind == "weight" else (64,),
            scheme=schemes.get(f"{kind[0]}{number}", Scheme.DENSE),
            bytes_out=1.0,
            push_bytes=1.0,
            alone_s=0.1,
            reason="so it was given",
        )
        for number in range(2)
        for kind in ("weight", "bias")
    ]
    return Plan(policy="auto", workers=2, choices=tuple(choices), step_s=1.0, compute_s=0.5, alone={})


class Bench:
    """Two layers whose gradients are planned; the other rank reports what this one does."""

    def __init__(self, policy: str | Plan, *, sizes: Sizes = SIZES, rank: int = 0, **options: Any) -> None:
        self.group = FakeGroup(sizes=sizes)
        self.group.rank = rank
        self.probe = FakeProbe(**options)
        self.layers = make_layers(WIDTHS)
        self.gradients = NumpyGradients(self.group, self.layers)
        self.planning = Planning(self.group, policy, self.probe)

    def adopt(self) -> Bench:
        self.planning.adopt(self.gradients)
        return self

    def train(self, passes: int = 1, *, digest: int | None = None) -> int:
        """So many passes; return how many reports were sent in them."""
        self.group.answered.clear()
        gathered = 0
        for _ in range(passes):
            self.planning.start_forward()
            if digest is not None and self.planning.wants_inputs:
                self.planning.note_inputs(digest)
            values = np.ones((2, 64), np.float32)
            for layer in self.layers:
                values = layer.forward(values)
            self.planning.begin(has_gates=True)
            self.gradients.begin()
            for layer in reversed(self.layers):
                values = layer.backward(values)
            self.gradients.send_rest()
            self.gradients.land()
            self.planning.end()
            gathered += bool(self.planning._reports.is_sent)
        return gathered

    @property
    def factored(self) -> list[str]:
        names = [self.gradients.name(index) for index in range(len(self.gradients))]
        return [name for index, name in enumerate(names) if self.gradients.takes_factors(index, now=False)]


def test_the_plan_cannot_be_allreduce_without_a_process_group() -> None:
    with pytest.raises(PlanError, match="process group"):
        Bench("allreduce")
    Bench("allreduce", has_process_group=True)


def test_without_choices_nothing_is_measured_or_reported() -> None:
    bench = Bench("dense", sizes=Sizes(fixed=1024)).adopt()
    assert bench.train(3 * PASSES) == 0
    assert "measure" not in bench.probe.calls


def test_a_dense_plan_still_reports_for_the_size_of_its_slices() -> None:
    bench = Bench("dense").adopt()
    assert bench.train(PASSES) == 1
    assert "survey" not in bench.probe.calls
    assert bench.planning.plan is None


def test_every_few_passes_one_reports_and_the_next_one_reads_the_reports() -> None:
    bench = Bench("auto").adopt()
    assert [bench.train() for _ in range(2 * PASSES + 1)] == [0, 0, 0, 1, 0, 0, 0, 1, 0]


def test_inputs_are_wanted_in_the_forward_of_a_pass_that_reports() -> None:
    bench = Bench("auto").adopt()
    wanted = []
    for _ in range(2 * PASSES):
        wanted.append(bench.planning.wants_inputs)
        bench.train()
    assert wanted == [False, False, False, True] * 2


def test_a_plan_is_made_in_one_pass_and_used_in_the_next_one() -> None:
    bench = Bench("auto").adopt()
    assert bench.probe.calls == ["measure", "survey"]
    bench.train(PASSES - 1)
    bench.probe.profile = profile_layers()
    bench.train()  # reports
    assert bench.planning.plan is None
    bench.train()  # reads
    assert bench.planning.plan is not None
    assert bench.planning.plan.schemes["layer 0.weight"] is Scheme.FACTORS
    assert bench.factored == []
    bench.train()  # uses
    assert bench.factored == ["layer 1.weight", "layer 0.weight"]
    assert all(layer.hands_over_factors for layer in bench.layers)
    bench.train(2 * PASSES)
    assert "measure again" not in bench.probe.calls


def test_without_a_profile_there_is_no_plan_and_the_cluster_is_not_measured_twice() -> None:
    bench = Bench("auto").adopt()
    bench.train(3 * PASSES)
    assert bench.planning.plan is None
    assert bench.probe.calls.count("measure") == 1


def test_a_given_plan_is_in_force_after_the_first_passes_without_any_measurement() -> None:
    bench = Bench(give_plan(w1=Scheme.FACTORS)).adopt()
    assert bench.train() == 1
    bench.train(2)
    assert bench.factored == ["layer 1.weight"]
    assert "measure" not in bench.probe.calls


def test_a_given_plan_of_another_model_is_refused_when_its_gradients_are_adopted() -> None:
    plan = give_plan()
    without = Plan(policy="auto", workers=2, choices=plan.choices[1:], step_s=1.0, compute_s=1.0, alone={})
    with pytest.raises(PlanError, match=r"the plan has no tensor 'layer 0\.weight'"):
        Bench(without).adopt()


def test_passes_that_are_not_planned_do_not_count() -> None:
    bench = Bench("auto").adopt()
    for _ in range(PASSES):
        bench.planning.skip()
    assert bench.probe.calls[2:] == ["skipped"] * PASSES
    assert bench.train(PASSES - 1) == 0


def test_only_the_first_passes_are_early() -> None:
    bench = Bench("auto").adopt()
    bench.train(EARLY_PASSES - 1)
    assert bench.planning.is_early
    bench.train()
    assert not bench.planning.is_early


def test_equal_inputs_are_reported_once_and_by_the_first_rank(caplog: pytest.LogCaptureFixture) -> None:
    for rank in (0, 1):
        bench = Bench("auto", rank=rank).adopt()
        for number in range(2 * ENOUGH):
            bench.train(PASSES, digest=number)
        bench.train()
    assert caplog.text.count("all 2 workers train on the same inputs") == 1


def test_a_reason_is_logged_once_for_all_its_gradients(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "undertow")
    for rank in (0, 1):
        bench = Bench("auto", rank=rank)
        bench.probe.reasons = {"a": "it is tied", "b": "it has a hook", "c": "it is tied"}
        bench.adopt()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "the gradients of 'a' and 'c' are sent whole: it is tied",
        "the gradient of 'b' is sent whole: it has a hook",
    ]


def test_slices_change_only_if_the_rate_asks_for_a_very_different_size() -> None:
    bench = Bench("dense").adopt()
    before = bench.planning._slice_bytes
    for seen, factor in ((0, 0.1), (1, 0.8), (2, 1.2)):  # at first nothing had to wait: the rate is an old one
        bench.group.rate.seen, bench.group.rate.bytes_per_s = seen, factor * before / SIZES.time_s
        bench.train(PASSES)
    bench.train(2)
    assert bench.group.resized == []
    bench.group.rate.seen, bench.group.rate.bytes_per_s = 3, before / SIZES.time_s / 8
    bench.train(PASSES)
    assert bench.planning._slice_bytes < before / 1.6
    assert len(bench.group.resized) == 1


def test_a_model_of_a_few_slices_is_not_worth_a_plan() -> None:
    assert is_small(FEWEST_SLICES * 1024 - 1, SIZES)
    assert not is_small(FEWEST_SLICES * 1024, SIZES)
