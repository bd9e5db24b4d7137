"""Plans that do not fit the model or each other are refused before training, with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch import nn

from tests.support.planned_training import LIMITS, MATRICES, USED, Training, make_net
from tests.support.workers import outcomes_of, run_workers
from undertow.errors import PlanError
from undertow.plan.plan import Plan
from undertow.plan.replanner import PASSES
from undertow.plan.scheme import Scheme
from undertow.torch import DistributedDataParallel


def give_nonsense(rank: int, path: str) -> list[str]:
    """Pass invalid plans on all ranks, which are refused when the module is wrapped; then continue."""
    training = Training(rank, 2, plan="factors")
    training.run(USED)
    plan = training.plan
    assert plan is not None
    wider = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 96))
    longer = nn.Sequential(*make_net(), nn.Linear(64, 64))
    texts = []
    for net, given in ((wider, plan), (longer, plan), (make_net(), "fastest"), (make_net(), path)):
        with pytest.raises(PlanError) as caught:
            DistributedDataParallel(net, plan=given)
        texts.append(str(caught.value))
    training.run(1)
    training.check()
    return texts


def test_a_plan_that_does_not_fit_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a plan")
    for texts in run_workers(2, give_nonsense, str(path), environment=LIMITS):
        wider, longer, unknown, notes = texts
        assert "the plan has '3.bias' of shape [64], but the model has it of shape [96]" in wider
        assert "has no tensor '4." in longer
        assert "there is no plan 'fastest': use one of auto, poseidon, dense, factors" in unknown
        assert f"{path} is not a plan of undertow" in notes


def ask_for_allreduce(rank: int) -> None:
    training = Training(rank, 2, plan="factors")
    training.run(USED)
    with pytest.raises(PlanError, match=r"process group\. Call torch\.distributed\.init_process_group first"):
        DistributedDataParallel(make_net(), plan="allreduce")
    # A plan for a cluster with a process group is followed as far as possible.
    plan = training.plan
    assert plan is not None
    choices = [
        choice if choice.tensor in MATRICES[1:] else msgspec.structs.replace(choice, scheme=Scheme.ALLREDUCE)
        for choice in plan.choices
    ]
    training = Training(rank, 2, plan=msgspec.structs.replace(plan, choices=tuple(choices)))
    training.run(PASSES)
    assert training.in_parts == MATRICES[1:]
    training.check()


def test_allreduce_without_a_process_group_is_refused_when_a_module_is_wrapped() -> None:
    """Never in the middle of a step."""
    run_workers(2, ask_for_allreduce, environment=LIMITS)


def wrap_with_unknown(rank: int) -> None:
    DistributedDataParallel(make_net())


def test_an_unknown_plan_in_the_environment_is_refused_when_a_module_is_wrapped() -> None:
    outcomes = outcomes_of(2, wrap_with_unknown, environment={"UNDERTOW_PLAN": "fastest"})
    assert "PlanError" in [outcome.kind for outcome in outcomes], outcomes
    for outcome in outcomes:  # a later rank may first receive the other's end, with its reason
        assert outcome.kind in ("PlanError", "PeerLost"), outcome
        assert "there is no plan 'fastest'" in outcome.text


def wrap_with(rank: int, plans: Sequence[Any]) -> None:
    DistributedDataParallel(make_net(), plan=plans[rank])


def make_plan(step_s: float) -> Plan:
    return Plan(policy="auto", workers=2, choices=(), step_s=step_s, compute_s=1.0, alone={})


@pytest.mark.parametrize(
    ("plans", "names"),
    [
        (("factors", "dense"), ("'factors'", "'dense'")),
        (("auto", "poseidon"), ("'auto'", "'poseidon'")),
        (("dense", make_plan(1.0)), ("'dense'", "'auto ")),
        (
            (make_plan(1.0), make_plan(2.0)),
            ("tables: the reports for the plan 'auto ", "against the reports for the plan"),
        ),
    ],
)
def test_ranks_with_different_plans_get_the_names_of_both(plans: tuple[Any, Any], names: tuple[str, str]) -> None:
    for outcome in outcomes_of(2, wrap_with, plans, environment=LIMITS):
        assert outcome.kind == "MismatchError", outcome
        assert all(name in outcome.text for name in names), outcome


def test_ranks_with_different_plans_get_both_names_with_a_given_slice_size() -> None:
    for outcome in outcomes_of(2, wrap_with, ("dense", "factors"), environment={"UNDERTOW_SLICE": "4096"}):
        assert outcome.kind == "MismatchError", outcome
        assert "'dense'" in outcome.text, outcome
        assert "'factors'" in outcome.text, outcome
