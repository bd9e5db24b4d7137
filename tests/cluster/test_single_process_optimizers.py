"""Optimizers of single-process scripts: their parameters stay the same on all ranks."""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import undertow
import undertow.torch
from tests.support.single_process import as_a_script, flat, run
from tests.support.workers import hear, outcomes_of, run_workers, say, start_workers
from undertow.script import single_process
from undertow.script.preparation import prepare
from undertow.torch.pending.pending_tensors import find_gate

DEFERRED = 4


def start_differently(rank: int) -> tuple[list[float], list[float]]:
    torch.manual_seed(rank)
    model = nn.Linear(3, 2)
    before = flat(model)
    torch.optim.SGD(model.parameters(), lr=0.1)
    return before, flat(model)


def test_all_start_with_the_weights_of_rank_0() -> None:
    (before0, after0), (before1, after1) = run(2, start_differently)
    assert before0 != before1
    assert after0 == after1 == before0


def average(rank: int) -> list[float]:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    gradients = []
    for step in range(3):
        optimizer.zero_grad()
        for micro in (1.0, 2.0):  # accumulated
            model(torch.tensor([[micro * (rank + 1) + step]])).sum().backward()
        gradients.append(model.weight.grad.item())
        optimizer.step()
    return gradients


def test_gradients_are_averaged_and_accumulated() -> None:
    assert run(4, average) == [[3 * 2.5 + 2 * step for step in range(3)]] * 4


class Pair(nn.Module):
    """A module whose own forward is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)
        self.spare = nn.Linear(2, 2)


def train_parts(rank: int) -> tuple[list[float], list[float], bool]:
    """Use two optimizers on one model, and parameters that are added later, in no module, or in no optimizer."""
    torch.manual_seed(rank)
    model, alone, late = Pair(), nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2))
    spare = model.spare.weight.detach().clone()
    first = torch.optim.SGD(model.left.parameters(), lr=0.1)
    second = torch.optim.Adam([{"params": model.right.parameters()}, {"params": [alone]}], lr=0.1)
    for step in range(4):
        if step == 2:
            second.add_param_group({"params": [late], "lr": 0.2})
        x = torch.full((1, 2), float(rank + 1))
        (model.right(model.left(x)).sum() + (alone * late * (rank + 1)).sum()).backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
        if step < 2:
            late.grad = None
    own = [*flat(model.left), *flat(model.right), *alone.tolist(), *late.tolist()]
    return own, model.spare.weight.flatten().tolist(), bool((model.spare.weight == spare).all())


def test_exactly_the_parameters_of_optimizers_are_synchronised() -> None:
    (own0, spare0, left0), (own1, spare1, left1) = run(2, train_parts)
    assert own0 == own1
    assert spare0 != spare1
    assert left0
    assert left1


def train_two_of_three(rank: int) -> tuple[list[float], float]:
    torch.manual_seed(rank)
    model = Pair()
    torch.optim.SGD([*model.left.parameters(), *model.right.parameters()], lr=0.1)
    (model.spare(model.right(model.left(torch.ones(1, 2)))).sum() * (1 + rank)).backward()
    return [*flat(model.left), *flat(model.right)], model.spare.bias.grad[0].item()


def test_a_module_may_hold_untrained_parameters() -> None:
    (own0, spare0), (own1, spare1) = run(2, train_two_of_three)
    assert own0 == own1
    assert (spare0, spare1) == (1.0, 2.0)


def train_tensors(rank: int) -> float:
    tensor = torch.full((1,), float(rank), requires_grad=True)
    optimizer = torch.optim.SGD([tensor], lr=1.0)
    (tensor * (rank + 1)).sum().backward()
    optimizer.step()
    return tensor.item()


def test_a_tensor_that_is_not_a_parameter_is_left_alone() -> None:
    assert run(2, train_tensors) == [-1.0, -1.0]


def follow_buffers(rank: int) -> tuple[list[float], list[float]]:
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.tensor([[1.0], [3.0 + 10 * rank]])).sum().backward()
        optimizer.step()
    trained = model[0].running_mean.tolist()
    model.eval()
    with torch.no_grad():
        model(torch.zeros(2, 1))
    return trained, model[0].running_mean.tolist()


def test_buffers_follow_rank_0_before_they_are_used() -> None:
    (trained0, used0), (trained1, used1) = run(2, follow_buffers)
    assert trained0 != trained1
    assert used0 == used1 == trained0


class Methodical(nn.Module):
    """A module with methods, whose forward is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(1), nn.Linear(1, 1)

    def find_loss(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.last(self.norm(x)).square().mean()
        return loss


def use_a_method(rank: int) -> tuple[list[float], list[float]]:
    model = Methodical()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.arange(16.0).reshape(16, 1))
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        model.find_loss(x).backward()
        optimizer.step()
    return flat(model), model.norm.running_mean.tolist()


def test_a_model_whose_forward_is_never_called_is_synchronised() -> None:
    first, second = run(2, use_a_method)
    assert first == second


def choose_rate(rank: int) -> list[float]:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    rates = []
    for step in range(3):
        schedule.step(step if rank == 0 else -step)  # worsens on rank 0 only
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def test_rank_0_decides_about_the_learning_rate() -> None:
    first, second = run(2, choose_rate)
    assert first == second
    assert first[-1] < 1.0


def keep(rank: int, folder: Path) -> tuple[list[str], list[float]]:
    """Save and load with every rank in a folder of its own, as on its own host."""
    own = folder / str(rank)
    own.mkdir()
    model = nn.Linear(1, 1)
    torch.optim.SGD(model.parameters(), lr=1.0)
    loaded = []
    for number in range(3):
        torch.save({"number": number}, own / f"{number}.pt")
        torch.save({"number": 10 + number}, str(own / "best.pt"))
        loaded += [torch.load(own / f"{number}.pt")["number"], torch.load(own / "best.pt")["number"]]
    with (own / "opened.pt").open("wb") as file:
        torch.save(model.state_dict(), file)
    return sorted(path.name for path in own.iterdir()), loaded


def test_one_rank_writes_checkpoints_and_all_can_read_them(tmp_path: Path) -> None:
    (files0, loaded0), (files1, loaded1) = run(2, keep, tmp_path)
    assert files0 == ["0.pt", "1.pt", "2.pt", "best.pt", "opened.pt"]
    assert files1 == ["opened.pt"]
    assert loaded0 == loaded1 == [0, 10, 1, 11, 2, 12]


def defer(rank: int, in_turns: bool) -> tuple[bool, list[float]]:
    """Let the ranks take turns: a rank computes only after the other has checked its gates, all of which are closed."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    was_due = False
    for step in range(DEFERRED):
        if in_turns and step % 2 != rank:
            hear()
        optimizer.zero_grad()
        model(torch.full((1, 2), rank + 1.0)).sum().backward()
        was_due |= any(find_gate(parameter) is not None for parameter in model.parameters())
        if in_turns and step % 2 == rank:
            say("looked")
        optimizer.step()
    return was_due, flat(model)


def test_overlap_puts_gates_in_front_of_parameters() -> None:
    crew = start_workers(2, as_a_script, defer, True, init=False, environment={"UNDERTOW_OVERLAP": "on"})
    for step in range(DEFERRED):
        crew.heard(step % 2)
        crew.tell(1 - step % 2, "go on")
    (was_due0, own0), (was_due1, own1) = [outcome.value for outcome in crew.outcomes()]
    assert was_due0
    assert was_due1
    assert own0 == own1


def test_without_overlap_there_are_no_gates() -> None:
    (was_due0, own0), (was_due1, own1) = run(2, defer, False)
    assert not was_due0
    assert not was_due1
    assert own0 == own1


def drift(rank: int) -> None:
    """Let weights drift in a second phase of training, which has its own optimizer."""
    data = torch.utils.data.TensorDataset(torch.ones(8, 1))
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in torch.utils.data.DataLoader(data, batch_size=2, shuffle=True):
        model(x).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model.bias += rank


def test_weights_that_drift_apart_are_an_error_at_the_end_of_an_epoch() -> None:
    for outcome in outcomes_of(2, as_a_script, drift, init=False):
        assert outcome.kind == "DriftError"
        assert "'Linear.bias' on rank 1" in outcome.text


def set_gradients(rank: int) -> None:
    """Step a second optimizer with gradients of `torch.autograd.grad`, which no backward pass averages."""
    model = nn.Linear(1, 1)
    torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(8.0).reshape(8, 1)), batch_size=2, shuffle=True
    ):
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(model(x).square().sum(), list(model.parameters())), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()
        break  # weights are compared at the end of an epoch


def test_gradients_that_were_not_averaged_are_noticed() -> None:
    for outcome in outcomes_of(2, as_a_script, set_gradients, init=False):
        assert outcome.kind == "ConfigError"
        assert "gradients of 'Linear.weight' and 'Linear.bias' that were not averaged" in outcome.text


def set_gradients_alike(rank: int) -> list[float]:
    """Step with zeros, as torch.distributed.checkpoint does to create states, and with values that all ranks share."""
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    torch.optim.SGD(other.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 1)), shuffle=True):
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()
        model(x).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["params"][0].grad = torch.ones(1, 1)
        optimizer.step()
    return flat(model)


def test_gradients_that_need_no_mean_are_not_refused() -> None:
    one, other = run(2, set_gradients_alike)
    assert one == other


def replace_file(rank: int, folder: Path) -> int:
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    for number in range(4):
        torch.save({"number": number}, folder / "last.tmp")
        os.replace(folder / "last.tmp", folder / "last.pt")
        torch.save(number, folder / f"{number}.pt")
        if number > 1:
            (folder / f"{number - 2}.pt").unlink()
    number: int = torch.load(folder / "last.pt")["number"]
    return number


def test_only_the_writer_renames_and_removes_checkpoints(tmp_path: Path) -> None:
    assert run(2, replace_file, tmp_path) == [3, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.pt", "3.pt", "last.pt"]


def save_whole(rank: int, folder: Path) -> None:
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    torch.optim.SGD(model.parameters(), lr=0.1)
    torch.save(model, folder / "model.pt")


def test_a_saved_model_can_be_read_without_undertow(tmp_path: Path) -> None:
    run(2, save_whole, tmp_path)
    text = (
        "import sys, torch; sys.modules['undertow'] = None\n"
        "print(torch.load(sys.argv[1], weights_only=False).eval()(torch.ones(1, 1)).shape)"
    )
    command = [sys.executable, "-c", text, str(tmp_path / "model.pt")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "torch.Size([1, 1])\n"


def wrap(rank: int) -> tuple[bool, bool]:
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group(
        "gloo",
        store=torch.distributed.HashStore(),  # type: ignore[attr-defined]
        rank=0,
        world_size=1,
    )
    model = DistributedDataParallel(nn.Linear(1, 1))
    copied = pickle.loads(pickle.dumps(model))  # noqa: S301
    torch.distributed.destroy_process_group()
    return isinstance(model, torch.nn.parallel.distributed.DistributedDataParallel), type(copied) is type(model)


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_the_wrapper_is_the_same_class_under_all_names(overlap: str) -> None:
    assert run(1, wrap, UNDERTOW_OVERLAP=overlap) == [(True, True)]


def join_later(rank: int) -> tuple[bool, float]:
    """Make an optimizer before joining a process group."""
    model = nn.Linear(1, 1)
    torch.optim.SGD(model.parameters(), lr=0.1)
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=8, shuffle=True)
    seen = sum(len(batch) for batch in loader)
    model(torch.full((1, 1), float(rank))).sum().backward()
    torch.distributed.destroy_process_group()
    return seen == 8, model.weight.grad.item()


def test_a_script_that_turns_out_to_know_of_ranks_is_left_alone() -> None:
    assert run(2, join_later) == [(True, 0.0), (True, 1.0)]


def know_of_ranks(rank: int, *, distributes: bool = False) -> str:
    undertow.init()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        model = nn.Linear(1, 1)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
        if distributes:
            undertow.torch.distribute(torch.utils.data.DataLoader(torch.arange(8.0), batch_size=8))
        model(torch.ones(1, 1)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    return said.getvalue()


def test_a_script_that_knows_of_ranks_is_warned_that_it_shares_its_data_itself() -> None:
    assert run(2, know_of_ranks) == ["", ""]
    first, second = run(2, know_of_ranks, UNDERTOW_BATCH="split")
    assert first.count("--batch split applies only to loaders that the script passes to undertow") == 1
    assert second == ""


def test_a_script_that_distributes_a_loader_is_not_warned() -> None:
    assert run(2, functools.partial(know_of_ranks, distributes=True), UNDERTOW_BATCH="split") == ["", ""]


def shut_down(rank: int) -> tuple[bool, float]:
    original = torch.optim.Optimizer.__init__
    single_process.imports_undertow = lambda: False
    prepare(None)
    patched = torch.optim.Optimizer.__init__
    model = nn.Linear(1, 1)
    torch.optim.SGD(model.parameters(), lr=0.1)
    undertow.shutdown()
    model(torch.full((1, 1), float(rank))).sum().backward()
    return original is torch.optim.Optimizer.__init__ is not patched, model.weight.grad.item()


def test_after_shutdown_every_rank_trains_alone() -> None:
    assert run_workers(2, shut_down, init=False) == [(True, 0.0), (True, 1.0)]


def draw_own_batches(rank: int) -> tuple[list[int], list[float], str]:
    """Draw batches as nanoGPT does; numbers drawn before the optimizer are the same on all ranks."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(3)
    model = nn.Linear(1, 1, bias=False)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        drawn = [int(torch.randint(1 << 30, ())), random.getrandbits(30), int(np.random.randint(1 << 30))]
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.rand(4, 1)).sum().backward()
            optimizer.step()
    return drawn, flat(model), said.getvalue()


def test_batches_drawn_by_the_script_are_the_same_and_a_remedy_is_printed() -> None:
    (drawn0, weights0, said), (drawn1, weights1, _) = run(2, draw_own_batches)
    assert drawn0 == drawn1
    assert weights0 == weights1
    assert said.count("nothing is gained") == 1
    assert "--seed-per-rank" in said


def step_by_itself(rank: int, script: str) -> str:
    multiprocessing.set_start_method("fork", force=True)
    single_process.imports_undertow = lambda: False
    prepare(script)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.full((1, 1), float(rank))).sum().backward()
        optimizer.step()
    return said.getvalue()


def test_a_script_that_may_select_rows_by_rank_gets_a_conditional_warning(tmp_path: Path) -> None:
    for text, is_certain in (("import torch", True), ("import os\nfirst = int(os.environ['RANK'])", False)):
        script = tmp_path / "train.py"
        script.write_text(text)
        said, _ = run_workers(2, step_by_itself, str(script), init=False)
        assert ("every rank computes the same, so nothing is gained" in said) is is_certain
        assert ("if the script gives all ranks the same data, nothing is gained" in said) is not is_certain


def test_with_a_seed_per_rank_each_rank_draws_different_batches() -> None:
    (drawn0, weights0, said), (drawn1, weights1, _) = first = run(2, draw_own_batches, UNDERTOW_SEED_PER_RANK="on")
    assert not {*drawn0} & {*drawn1}
    assert weights0 == weights1
    assert "nothing is gained" not in said
    assert run(2, draw_own_batches, UNDERTOW_SEED_PER_RANK="on")[1][0] == first[1][0], "a seed makes it repeatable"


def draw_in_epochs(rank: int) -> tuple[list[int], list[int]]:
    """Return the order that a loader draws, and the numbers that the script draws during and after the loop."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(3)
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    order, drawn = [], []
    for _ in range(2):
        for batch in DataLoader(range(8), batch_size=4, shuffle=True):  # type: ignore[arg-type]
            order += batch.tolist()
            drawn += [int(torch.randint(1 << 30, ())), random.getrandbits(30), int(np.random.randint(1 << 30))]
        drawn.append(int(torch.randint(1 << 30, ())))
    return order, drawn


def test_with_a_seed_per_rank_loaders_draw_one_order_and_the_script_its_own_numbers() -> None:
    environment = {"UNDERTOW_SEED_PER_RANK": "on", "UNDERTOW_BATCH": "split"}
    (order0, drawn0), (order1, drawn1) = first = run(2, draw_in_epochs, **environment)
    assert sorted(order0[:4] + order1[:4]) == sorted(order0[4:] + order1[4:]) == list(range(8))
    assert len({*drawn0, *drawn1}) == len(drawn0 + drawn1)
    assert run(2, draw_in_epochs, **environment) == first, "a seed makes it repeatable"
