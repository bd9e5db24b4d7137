"""Plans with factors and rows: computed, changed, copied and saved together with a net."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import itertools
import pickle
from typing import Any

import torch
from torch import nn

import undertow
import undertow.torch
from tests.support.factored_nets import (
    ALL,
    LIMITS,
    WIDTH,
    batch,
    check,
    compare,
    copy_of,
    find_gathered,
    learn,
    make_net,
    make_words,
    numbers,
    plan_factors,
    seed_of,
    train,
    words,
)
from tests.support.workers import on_workers, run_workers
from undertow.plan.scheme import Scheme
from undertow.torch import DistributedDataParallel, verify_replicas

# Copies of a planned net


def check_plain(net: nn.Module) -> None:
    for module in net.modules():
        assert type(module).__mro__[:2] == getattr(nn, type(module).__name__).__mro__[:2]
        assert not any("undertow" in name for name in vars(module))


@on_workers(2)
def test_copies_and_files_are_ordinary_modules(rank: int) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Sequential(make_words()), *make_net())

    net = make()
    model = DistributedDataParallel(net, plan=plan_factors(net))
    for index in range(3):
        model.zero_grad()
        model(words(5, seed=seed_of(index, rank))).square().sum().backward()
    assert find_gathered(model) == {"0.0.weight", "1.weight", "3.weight"}
    assert type(net[1]) is not nn.Linear
    assert type(net[1]).__name__ == "Linear"
    assert isinstance(net[1], nn.Linear)
    assert list(net.state_dict()) == list(make().state_dict())
    assert "undertow" not in repr(net)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    tokens = words(5, seed=7)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)):  # noqa: S301
        check_plain(other)
        assert torch.equal(other(tokens), net(tokens))
        other(tokens).sum().backward()
        assert other[1].weight.grad is not None
    check_plain(copy.deepcopy(model).module)
    again = type(net[1])(3, 3)  # as some libraries do to create a similar one
    assert again(torch.ones(3)).shape == (3,)
    undertow.barrier()


@on_workers(2)
def test_a_copy_of_the_wrapper_trains_on(rank: int) -> None:
    model, _ = train(rank, make_net, learn, plan=plan_factors)
    dense, _ = train(rank, make_net, learn, plan="dense")
    other = copy.deepcopy(model)
    for index in range(3):
        learn(other, index, rank)
        learn(dense, index, rank)
        for ours, theirs in zip(other.parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    assert find_gathered(other) == ALL


@on_workers(2)
def test_a_net_that_is_wrapped_again_can_be_planned_again(rank: int) -> None:
    net = make_net()
    for _ in range(2):
        model = DistributedDataParallel(net, plan=plan_factors(net))
        for index in range(3):
            learn(model, index, rank)
        assert find_gathered(model) == ALL
        expected = [copy_of(parameter.grad) for parameter in net.parameters()]
        dense = copy.deepcopy(net)
        dense_model = DistributedDataParallel(dense, plan="dense")
        learn(dense_model, 2, rank)
        torch.testing.assert_close([parameter.grad for parameter in dense.parameters()], expected)
        del model


# Plans that change


def choose_schemes(model: Any) -> dict[str, str]:
    plan = model._synchroniser.planning.plan
    return {} if plan is None else {name: scheme.value for name, scheme in plan.schemes.items()}


def change_rows(rank: int) -> list[set[str]]:
    """Change K across 32 rows, where Poseidon's rule switches: the layers are 64 wide, and there are two workers."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))

    gathered = []

    def step(model: Any, index: int, rank: int) -> None:
        rows = [4, 200, 4][index // 12] + 3 * rank
        model.zero_grad()
        with model.no_sync() if index % 5 == 3 else contextlib.nullcontext():
            model(numbers(rows, 64, seed=seed_of(index, rank))).square().mean().backward()
        if index % 5 == 3:
            model(numbers(rows, 64, seed=seed_of(index + 50, rank))).square().mean().backward()
        gathered.append(find_gathered(model))

    _, expected = train(rank, make, step, plan="dense", passes=36)
    gathered.clear()
    model, seen = train(rank, make, step, plan="poseidon", passes=36)
    for index, (ours, theirs) in enumerate(zip(seen, expected, strict=True)):
        compare(ours, theirs, f"pass {index}", 1e-4)
    verify_replicas(model.module)
    return gathered


def test_the_plan_follows_the_batch_size_during_training() -> None:
    first, second = run_workers(2, change_rows, environment=LIMITS)
    assert first == second
    changes = [names for names, before in itertools.pairwise([*first, None]) if names != before]
    assert changes == [set(), ALL, set(), ALL]


@on_workers(2, environment=LIMITS)
def test_policies_use_their_scheme_where_possible(rank: int) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words = nn.Embedding(200, 64)
            self.hidden = nn.Linear(64, 64)
            self.unused = nn.Linear(64, 64)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.hidden(self.words(tokens))

    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        model(words(5, seed=seed_of(index, rank), of=200)).square().mean().backward()

    _, expected = train(rank, Mixed, step, plan="dense", passes=8)
    for plan, parts in (
        ("dense", set()),
        ("factors", {"hidden.weight"}),
        ("factors-to-shard", {"hidden.weight"}),
        ("poseidon", {"hidden.weight"}),
        ("rows", {"words.weight"}),
        ("auto", None),  # whatever is fastest here
    ):
        model, seen = train(rank, Mixed, step, plan=plan, passes=8)
        for index, (ours, theirs) in enumerate(zip(seen, expected, strict=True)):
            compare(ours, theirs, f"{plan}, pass {index}", 1e-5)
        assert parts is None or find_gathered(model) == parts, plan
        assert plan == "dense" or set(choose_schemes(model)) == {name for name, _ in model.module.named_parameters()}


@on_workers(3)
def test_ranks_run_out_of_input_while_others_continue(rank: int) -> None:
    def step(model: Any, index: int, rank: int) -> None:
        if index not in (3, 5):
            learn(model, index, rank)
            return
        with model.join(divide_by_initial_world_size=index == 3):
            for turn in range(1 + rank):
                if turn == 1:
                    with model.no_sync():
                        model(batch(index + 30, rank)).square().sum().backward()
                learn(model, index + 40 + turn, rank)
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.sub_(0.05 * parameter.grad)
        model.zero_grad()

    check(rank, make_net, step, gathered=ALL, passes=8)


@on_workers(2, environment={"UNDERTOW_WAIT_FREE": "off"})
def test_factors_sent_after_backward_has_ended(rank: int) -> None:
    check(rank, make_net, learn, gathered=ALL, wholes=set())


@on_workers(2, environment=LIMITS)
def test_factors_larger_than_any_slice_and_layers_smaller_than_one(rank: int) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(WIDTH, 300), nn.Tanh(), nn.Linear(300, 2), nn.Linear(2, 2))

    def step(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        model(batch(index, rank, rows=3000 if rank else 3)).square().mean().backward()

    check(rank, make, step, gathered={"0.weight", "2.weight", "3.weight"}, wholes=set(), rtol=1e-4)


@on_workers(2)
def test_ranks_with_different_numbers_of_threads_stay_identical(rank: int) -> None:
    """They may multiply differently, so only shards multiply, for all of them."""
    torch.set_num_threads(1 + rank)

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(100, 300), nn.Tanh(), nn.Linear(300, 50))

    def step(model: nn.Module, index: int, rank: int) -> None:
        model.zero_grad()
        model(numbers(700, 100, seed=seed_of(index, rank))).square().mean().backward()

    _, expected = train(rank, make, step, plan="dense")
    for linear, gathered in ((Scheme.FACTORS, set()), (Scheme.FACTORS_TO_SHARD, ALL)):
        model, seen = train(rank, make, step, plan=functools.partial(plan_factors, linear=linear))
        assert find_gathered(model) == gathered
        compare(seen[-1], expected[-1], linear.value, 1e-4)
        verify_replicas(model.module)


@on_workers(2)
def test_sums_of_16_bits_that_would_overflow_do_not(rank: int) -> None:
    def make() -> nn.Module:
        net = nn.Linear(2, 2, bias=False).half()
        nn.init.zeros_(net.weight)
        return net

    def step(model: Any, index: int, rank: int) -> None:
        model.zero_grad()
        (model(torch.full((1, 2), 200.0, dtype=torch.half)) * 300).sum().backward()
        assert (model.module.weight.grad == 60000).all()

    check(rank, make, step, gathered={"weight"}, passes=3)
