"""Gates with real workers: compiled models, forks, uneven inputs, and workers that die."""

from __future__ import annotations

import os
import signal
import threading
import warnings

import torch
from torch import nn

import undertow
from tests.support.overlapped_training import SLOW, make_net, sgd, train
from tests.support.workers import on_workers, outcomes_of, run_workers
from undertow.errors import UndertowError
from undertow.torch import DistributedDataParallel, flush, parallelize, verify_replicas
from undertow.torch.pending.pending_tensors import find_gate


def train_plain(rank: int) -> list[torch.Tensor]:
    net = make_net()
    train(DistributedDataParallel(net), sgd(net), rank)
    return [parameter.detach().clone() for parameter in net.parameters()]


def check_same(net: nn.Module, expected: list[torch.Tensor]) -> None:
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(net.parameters(), expected, strict=True))


@on_workers(2, environment=SLOW)
def test_compiled_models_give_the_same_results(rank: int) -> None:
    warnings.simplefilter("default")  # torch's own, many
    expected = train_plain(rank)
    outside = make_net()
    model, optimizer = parallelize(outside, sgd(outside))
    train(torch.compile(model, backend="eager"), optimizer, rank)
    check_same(outside, expected)
    inside = make_net()
    model, optimizer = parallelize(torch.compile(inside, backend="eager"), sgd(inside))
    train(model, optimizer, rank)
    check_same(inside, expected)
    part = make_net()
    part[2].compile(backend="eager")
    train(*parallelize(part, sgd(part)), rank)
    check_same(part, expected)


@on_workers(2, environment=SLOW)
def test_a_held_gradient_is_the_mean_even_if_the_first_backward_was_compiled(rank: int) -> None:
    warnings.simplefilter("default")  # torch's own, many
    net = nn.Linear(64, 64, bias=False)
    model, _ = parallelize(net, sgd(net))
    inputs = torch.full((1, 64), 4.0 * (rank + 1))
    torch.compile(lambda: model(inputs).sum().backward(), backend="eager")()
    held = net.weight.grad = torch.zeros(64, 64)
    seen: list[float] = []

    def add_and_read() -> None:
        model(inputs).sum().backward()
        seen.extend(held.unique().tolist())

    reader = threading.Thread(target=add_and_read)
    if rank == 1:
        undertow.barrier()  # until then rank 0 gets no results
    reader.start()
    if rank == 0:
        reader.join(0.5)  # time enough to read it too early
        undertow.barrier()
    reader.join()
    assert seen == [6.0], seen


@on_workers(2, environment=SLOW)
def test_a_forked_child_gets_an_error_instead_of_waiting(rank: int) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads, on purpose
    net = make_net()
    model, optimizer = parallelize(net, sgd(net))
    if rank == 1:
        undertow.barrier()  # until then rank 0 gets no results
    train(model, optimizer, rank, steps=1)
    if rank == 0:
        child = os.fork()
        if child == 0:
            try:
                net[4].weight.sum()
            except UndertowError as error:
                os._exit(7 if "was forked" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        undertow.barrier()
    train(model, optimizer, rank)
    verify_replicas(net)


@on_workers(3, environment=SLOW)
def test_ranks_may_run_out_of_input(rank: int) -> None:
    digests = []
    for overlaps in (False, True):
        net = make_net()
        # Without momentum, because a rank that runs out of input misses the others' last steps.
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        model = parallelize(net, optimizer)[0] if overlaps else DistributedDataParallel(net)
        train(model, optimizer, rank)
        with model.join():
            train(model, optimizer, rank, steps=2 + rank)
        train(model, optimizer, rank)
        digests.append(verify_replicas(net))
    assert digests[0] == digests[1]


def die_behind_a_gate(rank: int) -> str:
    net = make_net()
    model, optimizer = parallelize(net, sgd(net))
    train(model, optimizer, rank)
    undertow.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    errors = set()
    for _ in range(2):  # immediate the second time
        try:
            train(model, optimizer, rank, steps=2)
            flush(model)
        except UndertowError as error:
            errors.add(f"{type(error).__name__}: {error}")
    return " ".join(errors)


def test_a_read_of_a_weight_names_a_dead_worker() -> None:
    first, second, third = outcomes_of(3, die_behind_a_gate, environment=SLOW)
    assert second.kind == "died"
    for outcome in (first, third):
        assert outcome.kind == "returned", outcome
        assert "PeerLost: rank 1" in outcome.value


def leave_gates_closed(rank: int) -> bool:
    net = make_net()
    model, optimizer = parallelize(net, sgd(net))
    if rank:
        undertow.barrier()  # until then rank 0 gets no results
    train(model, optimizer, rank, steps=1)
    if not rank:
        undertow.barrier()
    return all(find_gate(parameter) for parameter in net.parameters())


def test_a_worker_may_end_with_closed_gates() -> None:
    assert run_workers(3, leave_gates_closed, environment=SLOW)[0]


@on_workers(1)
def test_a_single_worker_does_not_wait(rank: int) -> None:
    net = make_net()
    model, optimizer = parallelize(net, sgd(net))
    train(model, optimizer, rank)
    assert not any(find_gate(parameter) for parameter in net.parameters())
