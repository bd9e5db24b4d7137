"""Real workers plan together: the same plan on all, made, changed and used in the same pass, with the same results."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import undertow
from tests.rates import set_rate
from tests.workers import outcomes_of, run_workers
from undertow.errors import PlanError
from undertow.plan.plan import Plan, read_plan
from undertow.plan.scheme import Scheme
from undertow.torch import DistributedDataParallel, flush, parallelize, verify_replicas
from undertow.torch.planning import PASSES

LIMITS = {"UNDERTOW_SMALLEST_SLICE": "1024", "UNDERTOW_LARGEST_SLICE": "16384"}
BATCH = 8
MANY = 300  # rows with which 64 x 64 is cheaper as a whole
# Reported in pass 4, planned in the next, used in the one after that.
PLANNED, USED = PASSES + 1, PASSES + 2
MATRICES = ["0.weight", "2.weight", "3.weight"]


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 64))


def make_batch(rank: int, number: int, size: int = BATCH) -> torch.Tensor:
    return torch.randn(size, 64, generator=torch.Generator().manual_seed(1000 * number + rank))


def find_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


class Training:
    """A model on this rank, beside one that sees the batches of all ranks."""

    def __init__(self, rank: int, size: int, net: nn.Module | None = None, *, overlaps: bool = False, **options: Any):
        self.rank, self.size = rank, size
        self.net = net or make_net()
        self.plain = copy.deepcopy(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.plain_optimizer = torch.optim.SGD(self.plain.parameters(), lr=0.1)
        self.passes = 0
        if overlaps:
            self.model, _ = parallelize(self.net, self.optimizer, **options)
        else:
            self.model = DistributedDataParallel(self.net, **options)

    def run(self, passes: int = 1, batch: int = BATCH, *, accumulates: bool = False) -> None:
        for _ in range(passes):
            self.passes += 1
            self.optimizer.zero_grad()
            if accumulates:
                with self.model.no_sync():
                    find_loss(self.model, make_batch(self.rank, -self.passes, batch)).backward()
            find_loss(self.model, make_batch(self.rank, self.passes, batch)).backward()
            self.optimizer.step()
            numbers = [-self.passes, self.passes] if accumulates else [self.passes]
            self._step_plain([make_batch(rank, number, batch) for rank in range(self.size) for number in numbers])

    def join(self, counts: Sequence[int]) -> None:
        """Uneven inputs: so many passes on each rank."""
        with self.model.join():
            for number in range(counts[self.rank]):
                self.optimizer.zero_grad()
                find_loss(self.model, make_batch(self.rank, 500 + number)).backward()
                self.optimizer.step()
        for number in range(max(counts)):
            self._step_plain([make_batch(rank, 500 + number) for rank in range(self.size) if number < counts[rank]])

    def _step_plain(self, batches: Sequence[torch.Tensor]) -> None:
        self.plain_optimizer.zero_grad()
        for batch in batches:
            (find_loss(self.plain, batch) / self.size).backward()
        self.plain_optimizer.step()

    def check(self) -> None:
        """All replicas are the same, and what one process would have made of it all."""
        flush(self.model)
        verify_replicas(nn.ParameterList(self.net.parameters()))
        for ours, theirs in zip(self.net.parameters(), self.plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)

    @property
    def planning(self) -> Any:
        assert self.model._synchroniser is not None
        return self.model._synchroniser.planning

    @property
    def plan(self) -> Plan | None:
        plan: Plan | None = self.planning.plan
        return plan

    @property
    def in_parts(self) -> list[str]:
        """The tensors of which the next pass sends parts, if no plan changes in it."""
        return sorted(
            gradients.name(index)
            for gradients in self.planning._gradients
            for index in range(len(gradients.parameters))
            if gradients.gathers(index, now=False)
        )

    @property
    def slice_bytes(self) -> int:
        table = self.planning._gradients[0].table
        return max(item.spec.size_bytes for item in table.current.slices)


def say_plan(plan: Plan | None) -> bytes:
    return b"" if plan is None else plan.to_json()


# Made, changed and used


def follow_changes(rank: int, overlaps: bool) -> list[tuple[bytes, list[str], int]]:
    training = Training(rank, 3, overlaps=overlaps, plan="poseidon")
    seen = []
    for rate, batch, passes in (
        (1e8, BATCH, 2 * PASSES),
        (1e8, MANY, 2 * PASSES),
        (1e8, BATCH, 2 * PASSES),
        (1e6, BATCH, 2 * PASSES),
        (1.2e6, BATCH + 1, 2 * PASSES),
    ):
        set_rate(rate * (1 + rank / 10))
        for _ in range(passes):
            training.run(batch=batch)
            seen.append((say_plan(training.plan), training.in_parts, training.slice_bytes))
    training.check()
    undertow.barrier()
    return seen


@pytest.mark.parametrize("overlaps", [False, True])
def test_all_ranks_plan_anew_in_the_same_pass_when_batch_or_link_change(overlaps: bool) -> None:
    ranks = run_workers(3, follow_changes, overlaps, environment=LIMITS)
    assert ranks[1] == ranks[2] == ranks[0]
    plans, in_parts, sizes = ([None, *column] for column in zip(*ranks[0], strict=True))  # by number of the pass
    made = [number for number in range(2, len(plans)) if plans[number] != plans[number - 1]]
    # Every eight passes another batch or another rate: told in the fourth; the last change is too small.
    eight = 2 * PASSES
    assert made == [PLANNED, eight + PLANNED, 2 * eight + PLANNED, 3 * eight + PLANNED]
    used = [number for number in range(2, len(plans)) if in_parts[number] != in_parts[number - 1]]
    assert used == [USED, eight + USED, 2 * eight + USED]
    assert in_parts[1] == in_parts[eight + USED] == []
    assert in_parts[USED] == in_parts[-1] == MATRICES
    resized = [number for number in range(2, len(plans)) if sizes[number] != sizes[number - 1]]
    assert 3 * eight + USED in resized
    assert not [number for number in resized if number > 3 * eight + USED]


def plan_automatically(rank: int, path: str) -> list[bytes]:
    """Which way is the fastest depends on this machine; that all say the same does not."""
    said = []
    for overlaps in (False, True):
        training = Training(rank, 3, overlaps=overlaps)
        training.run(PASSES)
        assert training.plan is None
        training.run(1)
        assert training.plan is not None
        assert training.in_parts == []
        training.run(1)
        plan = training.plan
        parts = [name for name, scheme in plan.schemes.items() if scheme not in (Scheme.DENSE, Scheme.ALLREDUCE)]
        assert training.in_parts == sorted(parts)
        assert (plan.policy, plan.workers) == ("auto", 3)
        assert sorted(plan.schemes) == sorted(name for name, _ in make_net().named_parameters())
        training.run(5)
        training.check()
        said.append(plan.to_json())
    give_back(rank, training.plan, path)
    undertow.barrier()
    return said


def give_back(rank: int, plan: Plan | None, path: str) -> None:
    """The same plan once more: as an object, and as the file that it was written to."""
    assert plan is not None
    choices = [
        msgspec.structs.replace(choice, scheme=Scheme.FACTORS) if choice.tensor in MATRICES[1:] else choice
        for choice in plan.choices
    ]
    plan = msgspec.structs.replace(plan, choices=tuple(choices))
    if rank == 0:
        plan.write(path)
    undertow.barrier()
    for given in (plan, path, Path(path)):
        training = Training(rank, 3, plan=given)
        training.run(2)
        assert training.plan == plan == read_plan(path)
        assert training.in_parts == []
        training.run(1)
        # A plan that is given needs no measurements.
        assert set(MATRICES[1:]) <= set(training.in_parts)
        training.run(PASSES + 2)
        assert training.plan == plan
        training.check()


def test_the_fastest_plan_is_the_same_on_all_ranks_and_can_be_given_back(tmp_path: Path) -> None:
    first, *others = run_workers(3, plan_automatically, str(tmp_path / "plan.json"), environment=LIMITS)
    assert all(other == first for other in others)


def use_environment(rank: int, path: str) -> None:
    training = Training(rank, 2)
    training.run(USED)
    assert training.plan is not None
    assert training.plan.policy == "factors"
    assert training.in_parts == MATRICES
    # An argument comes first.
    dense = Training(rank, 2, plan="dense")
    dense.run(USED)
    assert (dense.plan, dense.in_parts) == (None, [])
    training.check()
    dense.check()
    if rank == 0:
        training.plan.write(path)


def use_environment_file(rank: int) -> None:
    training = Training(rank, 2)
    training.run(3)
    assert training.in_parts == MATRICES
    training.check()


def test_the_environment_names_a_policy_or_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    run_workers(2, use_environment, path, environment={**LIMITS, "UNDERTOW_PLAN": "factors"})
    run_workers(2, use_environment_file, environment={**LIMITS, "UNDERTOW_PLAN": path})


def train_alone(rank: int) -> None:
    for plan in ("auto", "factors", "poseidon"):
        training = Training(rank, 1, plan=plan)
        training.run(USED + 1)
        assert training.planning is None
        assert type(training.net[0]) is nn.Linear
        training.check()


def test_one_worker_has_nothing_to_plan() -> None:
    run_workers(1, train_alone, environment=LIMITS)


# Models and training that change


def unfreeze_later(rank: int) -> None:
    net = make_net()
    net[2].requires_grad_(False)
    training = Training(rank, 2, net, plan="factors")
    training.run(USED)
    assert training.plan is not None
    assert "2.weight" not in training.plan.schemes
    assert training.in_parts == ["0.weight", "3.weight"]
    thaw(training)
    # Three passes to measure it, and the next report is that of pass 12.
    training.run(3 * PASSES - USED)
    assert "2.weight" not in training.plan.schemes
    training.run(1)
    assert training.plan.schemes["2.weight"] is Scheme.FACTORS
    assert training.in_parts == ["0.weight", "3.weight"]
    training.run(1)
    assert training.in_parts == MATRICES
    training.run(2)
    training.check()


def thaw(training: Training) -> None:
    for net in (training.net, training.plain):
        net.requires_grad_(True)


def unfreeze_everything_later(rank: int) -> None:
    net = make_net().requires_grad_(False)
    training = Training(rank, 2, net, plan="factors")
    assert training.plan is None
    thaw(training)
    training.run(USED)
    assert training.in_parts == MATRICES
    training.run(2)
    training.check()


def unfreeze_later_with_a_given_plan(rank: int) -> None:
    """It has a way for parameters that come later, too."""
    set_rate(None)  # another slice size would change everything anyway
    whole = Training(rank, 2, plan="factors")
    whole.run(USED)
    net = make_net()
    net[2].requires_grad_(False)
    training = Training(rank, 2, net, plan=whole.plan)
    training.run(3)
    assert training.in_parts == ["0.weight", "3.weight"]
    thaw(training)
    training.run(PASSES)
    training.check()
    assert training.in_parts == MATRICES


def test_parameters_that_are_unfrozen_later_take_part_in_a_later_plan() -> None:
    run_workers(2, unfreeze_later, environment=LIMITS)
    run_workers(2, unfreeze_everything_later, environment=LIMITS)


def test_parameters_that_are_unfrozen_later_follow_a_plan_that_was_given() -> None:
    run_workers(2, unfreeze_later_with_a_given_plan, environment=LIMITS)


def accumulate(rank: int) -> None:
    training = Training(rank, 2, plan="factors")
    training.run(4 * PASSES, accumulates=True)
    training.check()
    assert training.in_parts == MATRICES


def test_accumulated_gradients_stay_with_their_plan() -> None:
    """What was accumulated before the first parts were asked for is no reason to give them up for good."""
    run_workers(2, accumulate, environment=LIMITS)


def wrap_again(rank: int) -> None:
    training = Training(rank, 2, plan="factors")
    training.run(USED)
    assert training.in_parts == MATRICES
    again = Training(rank, 2, training.net, plan="factors")
    again.run(USED)
    again.check()
    assert again.in_parts == MATRICES


def test_a_module_that_is_wrapped_again_is_planned_again() -> None:
    run_workers(2, wrap_again, environment=LIMITS)


# Uneven inputs


def join_at_any_time(rank: int) -> None:
    for before in range(USED + 2):
        for overlaps in (False, True):
            training = Training(rank, 3, overlaps=overlaps, plan="factors-to-shard" if overlaps else "factors")
            training.run(before)
            counts = [(rank + before) % 3 for rank in range(3)]
            training.join(counts)
            assert training.in_parts == (MATRICES if before >= USED else [])
            # Passes in a join are planned by nobody.
            training.run(max(0, PLANNED - before))
            assert training.in_parts == (MATRICES if before >= USED else [])
            training.run(max(0, USED - max(before, PLANNED)))
            assert training.in_parts == MATRICES
            training.join(counts[::-1])
            training.run(1)
            training.check()
    undertow.barrier()


def test_ranks_may_run_out_of_input_before_during_and_after_a_change() -> None:
    run_workers(3, join_at_any_time, environment=LIMITS)


def join_for_long(rank: int) -> None:
    training = Training(rank, 2, plan="poseidon")
    training.run(USED)
    assert training.in_parts == MATRICES
    plan = training.plan
    training.join([40, 30])
    training.run(2 * PASSES)
    assert training.plan is plan
    assert training.in_parts == MATRICES
    training.check()


def test_rows_of_passes_in_a_join_do_not_look_like_a_larger_batch() -> None:
    run_workers(2, join_for_long, environment=LIMITS)


# Refused


def give_nonsense(rank: int, path: str) -> list[str]:
    """On all ranks alike, and when the module is wrapped; then they go on."""
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


def test_a_plan_that_does_not_fit_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a plan")
    for texts in run_workers(2, give_nonsense, str(path), environment=LIMITS):
        wider, longer, unknown, notes = texts
        assert "the plan is for a '3.bias' of shape [64], but it is [96]" in wider
        assert "has no tensor '4." in longer
        assert "there is no plan 'fastest': use one of auto, poseidon, dense, factors" in unknown
        assert f"{path} is no plan of undertow" in notes


def ask_for_allreduce(rank: int) -> None:
    training = Training(rank, 2, plan="factors")
    training.run(USED)
    with pytest.raises(PlanError, match="process group"):
        DistributedDataParallel(make_net(), plan="allreduce")
    # A plan of a cluster that had one is followed as far as possible.
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
    for outcome in outcomes_of(2, wrap_with_unknown, environment={"UNDERTOW_PLAN": "fastest"}):
        assert outcome.kind == "PlanError", outcome
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
        ((make_plan(1.0), make_plan(2.0)), ("rank 0 registers the reports for the plan 'auto ", "rank 1 registers")),
    ],
)
def test_ranks_with_different_plans_are_told_both(plans: tuple[Any, Any], names: tuple[str, str]) -> None:
    for outcome in outcomes_of(2, wrap_with, plans, environment=LIMITS):
        assert outcome.kind == "MismatchError", outcome
        assert all(name in outcome.text for name in names), outcome


def test_ranks_with_different_plans_are_told_both_where_the_slice_size_is_given() -> None:
    for outcome in outcomes_of(2, wrap_with, ("dense", "factors"), environment={"UNDERTOW_SLICE": "4096"}):
        assert outcome.kind == "MismatchError", outcome
        assert "'dense'" in outcome.text, outcome
        assert "'factors'" in outcome.text, outcome


def plan_with_given_slices(rank: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Linear(256, 64))
    training = Training(rank, 2, net, plan="factors")
    training.run(USED)
    assert training.in_parts == MATRICES
    training.run(3)
    training.join([1, 3])
    training.run(2)
    training.check()


def test_a_slice_size_that_is_given_goes_with_any_plan() -> None:
    """Also one below the smallest that would be chosen."""
    run_workers(2, plan_with_given_slices, environment={"UNDERTOW_SLICE": "1024"})
