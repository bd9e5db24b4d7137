"""Real workers make, change and use the same plan in the same pass, with the same results."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import nn

import undertow
from tests.support.planned_training import BATCH, LIMITS, MANY, MATRICES, PLANNED, USED, Training, make_net, say_plan
from tests.support.rates import set_rate
from tests.support.workers import run_workers
from undertow.plan import planner
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Plan, read_plan
from undertow.plan.replanner import PASSES
from undertow.plan.scheme import Scheme
from undertow.sync.links import measure_cluster
from undertow.torch.planning.probe import TorchDevice
from undertow.torch.ranks.process_groups import group_for

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
def test_all_ranks_replan_in_the_same_pass_when_batch_or_link_changes(overlaps: bool) -> None:
    ranks = run_workers(3, follow_changes, overlaps, environment=LIMITS)
    assert ranks[1] == ranks[2] == ranks[0]
    plans, in_parts, sizes = ([None, *column] for column in zip(*ranks[0], strict=True))  # by number of the pass
    made = [number for number in range(2, len(plans)) if plans[number] != plans[number - 1]]
    # The batch or the rate changes every eight passes, and is reported four passes later; the last change is too small.
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
    """Which scheme is fastest depends on this machine, but all ranks must agree."""
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
    """Reuse the same plan as an object and as a file."""
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
        # A given plan needs no measurements.
        assert set(MATRICES[1:]) <= set(training.in_parts)
        training.run(PASSES + 2)
        assert training.plan == plan
        training.check()


def test_the_fastest_plan_is_the_same_on_all_ranks_and_reusable(tmp_path: Path) -> None:
    first, *others = run_workers(3, plan_automatically, str(tmp_path / "plan.json"), environment=LIMITS)
    assert all(other == first for other in others)


def use_environment(rank: int, path: str) -> None:
    training = Training(rank, 2)
    training.run(USED)
    assert training.plan is not None
    assert training.plan.policy == "factors"
    assert training.in_parts == MATRICES
    # An argument takes precedence.
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


def test_a_single_worker_has_no_plan() -> None:
    run_workers(1, train_alone, environment=LIMITS)


def measure_links_again(rank: int, meeting: str) -> list[tuple[Cluster, bytes]]:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    planner.WORTH_ANOTHER_SYSTEM = 2.0  # so it never takes effect
    training = Training(rank, 2)
    seen = []
    for rate in (1e9, 1e6, 1e6):
        set_rate(rate)
        training.run(2 * PASSES)
        seen.append((measure_cluster(group_for(), TorchDevice(torch.device("cpu"))), say_plan(training.plan)))
    training.check()
    undertow.barrier()
    dist.destroy_process_group()
    return seen


def test_changed_links_are_measured_again_with_the_process_group(tmp_path: Path) -> None:
    ranks = run_workers(2, measure_links_again, str(tmp_path / "meeting"), environment=LIMITS)
    for (at_start, _), (changed, _), (later, _) in ranks:
        assert at_start != changed
        assert later == changed
    assert [plan for _, plan in ranks[0]] == [plan for _, plan in ranks[1]]


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


def test_a_given_slice_size_works_with_any_plan() -> None:
    """Even one below the smallest that would be chosen."""
    run_workers(2, plan_with_given_slices, environment={"UNDERTOW_SLICE": "1024"})


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
    # Measuring takes three passes, and the next report is that of pass 12.
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
    net[0].bias.requires_grad_(True)  # torch refuses a module without trainable parameters
    training = Training(rank, 2, net, plan="factors")
    assert training.plan is None
    thaw(training)
    training.run(USED)
    assert training.in_parts == MATRICES
    training.run(2)
    training.check()


def unfreeze_later_with_a_given_plan(rank: int) -> None:
    """The plan also has schemes for parameters that are unfrozen later."""
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


def test_parameters_unfrozen_later_join_a_later_plan() -> None:
    run_workers(2, unfreeze_later, environment=LIMITS)
    run_workers(2, unfreeze_everything_later, environment=LIMITS)


def test_parameters_unfrozen_later_follow_a_given_plan() -> None:
    run_workers(2, unfreeze_later_with_a_given_plan, environment=LIMITS)


def accumulate(rank: int) -> None:
    training = Training(rank, 2, plan="factors")
    training.run(4 * PASSES, accumulates=True)
    training.check()
    assert training.in_parts == MATRICES


def test_accumulated_gradients_keep_their_plan() -> None:
    """A gradient accumulated before factors were first wanted must not rule them out forever."""
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
            # Passes in a join are not planned.
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


def test_rows_of_passes_in_a_join_do_not_count_as_a_larger_batch() -> None:
    run_workers(2, join_for_long, environment=LIMITS)
