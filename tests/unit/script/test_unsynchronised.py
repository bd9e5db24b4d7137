"""A single-process script that trains without an optimizer is warned that nothing is synchronised."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from undertow.errors import ConfigError
from undertow.script.patches import SINGLE_PROCESS_PATCHES, AppliedPatches
from undertow.script.patching import patch_torch
from undertow.script.single_process import SingleProcessScript
from undertow.script.unsynchronised import check_averaged
from undertow.settings import Batch, Settings


@contextmanager
def script(rank: int = 0, world_size: int = 2, batch: Batch = Batch.SAME) -> Iterator[SingleProcessScript]:
    """Run the block as a single-process script."""
    single, patches = SingleProcessScript(Settings(rank=rank, world_size=world_size, batch=batch)), AppliedPatches()
    patches.apply(SINGLE_PROCESS_PATCHES, single)
    try:
        yield single
    finally:
        single.stop_watching()
        patches.undo()


def train(passes: int) -> None:
    """Train with an update rule of the script's own."""
    weight = torch.nn.Parameter(torch.ones(1))
    for _ in range(passes):
        (weight * 2).sum().backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad


def optimizer_hooks() -> dict[int, object]:
    hooks: dict[int, object] = vars(sys.modules["torch.optim.optimizer"])["_global_optimizer_pre_hooks"]
    return hooks


def test_the_warning_is_printed_once_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with script():
        train(5)
    (line,) = capsys.readouterr().err.splitlines()
    for words in ("without a torch.optim optimizer", "each of 2 workers", "the same paths", "-n 1", "--plain off"):
        assert words in line


def test_one_pass_before_the_optimizer_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    with script(batch=Batch.SPLIT):
        train(1)
    assert capsys.readouterr().err == ""


def train_by_grad(weight: torch.Tensor) -> None:
    (gradient,) = torch.autograd.grad((weight * 2).sum(), iter([weight]))
    weight.data -= 0.1 * gradient


def train_by_func(weight: torch.Tensor) -> None:
    weight.data -= 0.1 * torch.func.grad(lambda given: (given * 2).sum())(weight.detach())


@pytest.mark.parametrize("update", [train_by_grad, train_by_func])
@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.Tensor.requires_grad_])
def test_gradients_that_are_not_accumulated_count_as_well(
    update: Callable[[torch.Tensor], None],
    kind: Callable[[torch.Tensor], torch.Tensor],
    capsys: pytest.CaptureFixture[str],
) -> None:
    weight = kind(torch.ones(2))
    with script():
        update(weight)
        assert capsys.readouterr().err == ""
        for _ in range(4):
            update(weight)
    (line,) = capsys.readouterr().err.splitlines()
    assert "computes gradients without a torch.optim optimizer" in line


def test_weights_that_change_between_gradients_are_training() -> None:
    with script(batch=Batch.SPLIT):
        repeat = functools.partial(list, map(train_by_grad, [torch.nn.Parameter(torch.ones(2))] * 3))
        with pytest.raises(ConfigError, match="--batch split is not possible"):
            repeat()


def test_gradients_of_batches_are_not_training(capsys: pytest.CaptureFixture[str]) -> None:
    """Examples are saliency maps and adversarial examples."""
    with script(batch=Batch.SPLIT):
        for _ in range(4):
            batch = torch.ones(3, requires_grad=True)
            torch.autograd.grad(batch.square().sum(), [batch])
            torch.autograd.functional.jacobian(torch.square, torch.ones(3))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_split_batches_are_refused_without_an_optimizer(rank: int) -> None:
    with script(rank, batch=Batch.SPLIT), pytest.raises(ConfigError, match=r"--batch split is not possible.*optimizer"):
        train(2)


@pytest.mark.parametrize(("rank", "world_size"), [(1, 2), (0, 1)])
def test_only_rank_0_of_several_prints_the_warning(
    rank: int, world_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with script(rank, world_size):
        train(3)
    assert capsys.readouterr().err == ""


def test_a_single_worker_may_split_its_batches() -> None:
    with script(world_size=1, batch=Batch.SPLIT):
        train(3)


@pytest.mark.parametrize("joins", [False, True])
def test_a_script_that_imports_undertow_must_join(joins: bool, capsys: pytest.CaptureFixture[str]) -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    with script(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("undertow.script.single_process.imports_undertow", lambda: True)
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        patch.setattr("undertow.script.unsynchronised.has_joined", lambda: joins)
        for _ in range(3):
            parameter.sum().backward()
            optimizer.step()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (0 if joins else 1)
    assert joins or "imports undertow, but has not joined the other workers: each of 2 trains" in lines[0]


def test_a_script_that_knows_of_ranks_is_not_warned(capsys: pytest.CaptureFixture[str]) -> None:
    with script(batch=Batch.SPLIT) as single:
        single.end()
        train(3)
        for _ in range(3):
            train_by_func(torch.ones(2))
    with script(batch=Batch.SPLIT), pytest.MonkeyPatch.context() as patch:
        patch.setattr("undertow.script.single_process.has_joined", lambda: True)
        train(3)
    assert capsys.readouterr().err == ""


def test_gradients_of_each_sample_are_computed() -> None:
    """Their inputs are tensors inside vmap, which have no readable values."""
    with script():
        found = torch.vmap(torch.func.grad(lambda x: (x**3).sum()))(torch.ones(2, 3))
    assert found.tolist() == [[3.0] * 3] * 2


def differentiate_by_func() -> None:
    torch.func.jacrev(torch.square)(torch.ones(3))
    torch.func.hessian(lambda x: x.square().sum())(torch.ones(3))


def try_out_two_models() -> None:
    for model in (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)):
        model(torch.ones(1, 2)).sum().backward()


def try_out_one_model_twice() -> None:
    model = torch.nn.Linear(2, 2)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def check_gradients() -> None:
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    assert all(torch.autograd.gradcheck(torch.sin, (x,)) for _ in range(2))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, in hessian
@pytest.mark.parametrize("look", [differentiate_by_func, try_out_two_models, try_out_one_model_twice, check_gradients])
def test_gradients_that_may_not_be_training_are_not_refused(
    look: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with script(batch=Batch.SPLIT):
        look()
    assert all("without a torch.optim optimizer" in line for line in capsys.readouterr().err.splitlines())


def test_training_after_other_gradients_is_still_refused() -> None:
    with script(batch=Batch.SPLIT):
        try_out_two_models()
        with pytest.raises(ConfigError, match="--batch split is not possible"):
            train(2)


def test_training_that_creates_new_weights_in_every_step_is_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    """JAX does so; whether the new weights were computed from the old ones cannot be seen."""
    weight = torch.ones(2)
    with script(batch=Batch.SPLIT):
        for _ in range(4):
            weight = weight - 0.1 * torch.func.grad(lambda given: (given * 2).sum())(weight)
    (line,) = capsys.readouterr().err.splitlines()
    assert "computes gradients without a torch.optim optimizer" in line


def test_gradients_that_were_not_averaged_are_named() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    check_averaged(optimizer, [])
    with pytest.raises(ConfigError, match=r"SGD .*'a', 'b', 'c' and 2 more that were not averaged: they were assigned"):
        check_averaged(optimizer, ["a", "b", "c", "d", "e"])
    with pytest.raises(ConfigError, match="computed by a backward pass before the optimizer knew the parameters"):
        check_averaged(optimizer, ["a"])


def test_the_step_hook_is_removed_on_undo(capsys: pytest.CaptureFixture[str]) -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    before = len(optimizer_hooks())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("undertow.script.single_process.imports_undertow", lambda: True)
        nothing = dict.fromkeys(("restart", "on_begin", "on_end", "on_join"), lambda: None)
        undo = patch_torch(Settings(world_size=2), looks_single_process=False, **nothing)
        torch.optim.SGD([parameter], lr=0.1)
        assert len(optimizer_hooks()) == before + 1
        undo()
    assert len(optimizer_hooks()) == before


@pytest.mark.parametrize("batch", Batch)
def test_a_process_group_of_one_process_is_not_joined(batch: Batch, capsys: pytest.CaptureFixture[str]) -> None:
    """A library may need one; every worker then has its own."""
    parameter = torch.nn.Parameter(torch.ones(1))
    with script(batch=batch):
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        try:
            optimizer = torch.optim.SGD([parameter], lr=0.1)
            assert capsys.readouterr().err == ""
            other = register_optimizer_step_pre_hook(lambda *given: None)  # of the script's own, after ours
            parameter.sum().backward()
            if batch is Batch.SPLIT:
                with pytest.raises(
                    ConfigError, match=r"--batch split is not possible: .* process group of one process"
                ):
                    optimizer.step()
            optimizer.step()
        finally:
            other.remove()
            dist.destroy_process_group()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (0 if batch is Batch.SPLIT else 1)
    assert not lines or "so undertow leaves it alone: each of 2 workers trains a full copy by itself" in lines[0]


def test_values_are_not_read_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading one would end the capture of a CUDA graph, for example in torch.cuda.make_graphed_callables."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr("undertow.script.unsynchronised._digest", lambda tensor: pytest.fail("read"))
    weight = torch.nn.Parameter(torch.ones(2))
    with script():
        train_by_grad(weight)
        weight.sum().backward()
