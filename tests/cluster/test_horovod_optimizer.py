"""Horovod's optimizer on real workers: it steps with the gradients of all, however a step is written."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.step_events import list_events
from tests.support.wait_free import Barrier
from tests.support.workers import on_workers
from undertow import torch as undertow_torch
from undertow.errors import ConfigError
from undertow.horovod import torch as hvd
from undertow.tracing.recorder import process_recorder

CLASSES = 4


def make_model(seed: int = 0, width: int = 32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, CLASSES)).double()


def make_data(rows: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(rows, 6, generator=generator).double(), torch.randint(CLASSES, (rows,), generator=generator)


def share(rank: int, size: int, *, lap: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = make_data()
    return inputs.roll(lap, 0)[rank::size], targets.roll(lap, 0)[rank::size]


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def assert_same(model: nn.Module, expected: nn.Module, tolerance: float = 1e-12) -> None:
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=tolerance, rtol=tolerance), name
    undertow_torch.verify_replicas(model)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


@on_workers(3)
def test_steps_equal_those_of_one_process(rank: int) -> None:
    for make, width in itertools.product((sgd, adam), (32, 3000)):
        model, alone = make_model(seed=rank, width=width), make_model(width=width)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(make(model), named_parameters=model.named_parameters())
        reference = make(alone)
        assert isinstance(optimizer, type(reference))
        for lap in range(4):
            optimizer.zero_grad()
            loss_of(model, share(rank, 3, lap=lap)).backward()
            optimizer.step()
            reference.zero_grad()
            loss_of(alone, share(0, 1, lap=lap)).backward()
            reference.step()
        assert_same(model, alone)


@on_workers(2)
def test_gradients_come_back_while_backward_still_runs(rank: int) -> None:
    first, last = (nn.Linear(300, 300, bias=False) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1))
    hvd.barrier()  # nothing that the start has sent is still in flight
    process_recorder.start()
    last(Barrier.apply(first(torch.ones(300)))).sum().backward()
    optimizer.step()
    process_recorder.stop()
    order = [what for _, what in list_events() if what != "sent"]
    assert order[1] == "result"  # right after the first gradient


@on_workers(2)
def test_gradients_are_summed_on_request(rank: int) -> None:
    model, alone = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), op=hvd.Sum)
    loss_of(model, share(rank, 2)).backward()
    optimizer.synchronize()
    for part in range(2):
        loss_of(alone, share(part, 2)).backward()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad)  # type: ignore[arg-type]


@on_workers(2)
def test_gradients_add_up_over_several_passes(rank: int) -> None:
    model, alone = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), backward_passes_per_step=2)
    reference = sgd(alone)
    for lap in range(3):
        optimizer.zero_grad()
        reference.zero_grad()
        passes = 2 if lap < 2 else 1  # the last one of an epoch may be short
        for part in range(passes):
            (loss_of(model, share(rank, 2, lap=part)) / passes).backward()
            (loss_of(alone, share(0, 1, lap=part)) / passes).backward()
        optimizer.step()
        reference.step()
    assert_same(model, alone)
    loss_of(model, share(rank, 2)).backward()
    loss_of(model, share(rank, 2)).backward()
    with pytest.raises(AssertionError, match="more than backward_passes_per_step"):
        loss_of(model, share(rank, 2)).backward()
    optimizer.step()
    optimizer.set_backward_passes_per_step(1)
    assert optimizer.backward_passes_per_step == 1
    optimizer.zero_grad()
    loss_of(model, share(rank, 2)).backward()
    optimizer.step()
    undertow_torch.verify_replicas(model)


@on_workers(2)
def test_sixteen_bits_round_each_gradient_once_before_and_once_after(rank: int) -> None:
    for width in (32, 9000):
        model = make_model(width=width).float()
        parts = [copy.deepcopy(model) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(sgd(model), compression=hvd.Compression.fp16)
        inputs, targets = share(rank, 2)
        loss_of(model, (inputs.float(), targets)).backward()
        optimizer.synchronize()
        for part, other in enumerate(parts):
            inputs, targets = share(part, 2)
            loss_of(other, (inputs.float(), targets)).backward()
        for ours, first, second in zip(*(one.parameters() for one in (model, *parts)), strict=True):
            assert ours.grad.dtype is torch.float32
            expected = ((first.grad.half().float() + second.grad.half().float()) / 2).half().float()
            assert torch.equal(ours.grad, expected)
            assert not torch.equal(ours.grad, (first.grad + second.grad) / 2)


@on_workers(2)
def test_gradients_can_be_changed_between_synchronize_and_step(rank: int) -> None:
    model, alone = make_model(), make_model()
    optimizer, reference = hvd.DistributedOptimizer(sgd(model)), sgd(alone)
    loss_of(model, share(rank, 2)).backward()
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    with optimizer.skip_synchronize():
        optimizer.step()
    loss_of(alone, share(0, 1)).backward()
    assert torch.allclose(norm, nn.utils.clip_grad_norm_(alone.parameters(), 0.01))
    reference.step()
    assert_same(model, alone)
    loss_of(model, share(rank, 2)).backward()
    with pytest.raises(AssertionError, match="gradients are in flight"):
        optimizer.zero_grad()
    optimizer.synchronize()
    optimizer.zero_grad()
    with pytest.raises(UserWarning, match=r"without optimizer\.skip_synchronize"):
        optimizer.step()
    with optimizer.skip_synchronize():
        optimizer.step()


@on_workers(2)
def test_a_step_may_compute_its_gradients_itself(rank: int) -> None:
    for make in (sgd, lambda model: torch.optim.LBFGS(model.parameters(), max_iter=3)):
        model, alone = make_model(), make_model()
        optimizer, reference = hvd.DistributedOptimizer(make(model)), make(alone)

        def closure(target: nn.Module = model, which: Any = optimizer, part: tuple[int, int] = (rank, 2)) -> Any:
            which.zero_grad()
            loss = loss_of(target, share(*part))
            loss.backward()
            return hvd.allreduce(loss.detach())

        optimizer.step(closure)
        reference.step(lambda which=reference, target=alone, own=closure: own(target, which, (0, 1)))  # type: ignore[misc]
        assert_same(model, alone, tolerance=1e-9)


@on_workers(2)
def test_ranks_may_use_different_parts_of_a_model(rank: int) -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=0.1))
    layers[rank](torch.ones(3)).sum().backward()
    optimizer.step()
    for layer in layers[:2]:
        assert torch.equal(layer.bias.grad, torch.full((3,), 0.5))
    assert layers[2].bias.grad is None  # used by no rank: as in one process
    undertow_torch.verify_replicas(layers)


@on_workers(2)
def test_parameters_may_be_frozen_and_added_later(rank: int) -> None:
    model, head = make_model(), nn.Linear(CLASSES, CLASSES).double()
    hvd.broadcast_parameters(list(head.named_parameters()), root_rank=1)
    model[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(sgd(model))
    for lap in range(3):
        if lap == 1:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": head.parameters()})
        optimizer.zero_grad()
        loss_of(nn.Sequential(model, head), share(rank, 2, lap=lap)).backward()
        optimizer.step()
        undertow_torch.verify_replicas(nn.Sequential(model, head))


@on_workers(2)
def test_every_parameter_has_a_name_that_scripts_can_look_up(rank: int) -> None:
    model, head = make_model(), nn.Linear(CLASSES, CLASSES).double()
    model[0].requires_grad_(False)
    given = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    assert given._parameter_names == {parameter: name for name, parameter in model.named_parameters()}
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    made = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))
    made.add_param_group({"params": head.parameters()})
    made.synchronize()
    names = [made._parameter_names[parameter] for parameter in (*model.parameters(), *head.parameters())]
    assert len(set(names)) == 6
    assert hvd.allgather_object(names) == [names, names]


@on_workers(2)
def test_sparse_gradients_stay_sparse(rank: int) -> None:
    torch.manual_seed(0)
    for make in (torch.optim.SparseAdam, torch.optim.SGD):
        table = nn.Embedding(10, 3, sparse=True)
        hvd.broadcast_parameters(table.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(make(list(table.parameters()), lr=0.1), sparse_as_dense=True)
        for lap in range(2):
            optimizer.zero_grad()
            table(torch.tensor([1 + rank, 4 + lap])).sum().backward()
            optimizer.synchronize()
            assert table.weight.grad.is_sparse
            with optimizer.skip_synchronize():
                optimizer.step()
        undertow_torch.verify_replicas(table)


@on_workers(3)
def test_ranks_with_less_data_join_the_others(rank: int) -> None:
    model, alone = make_model(), make_model()
    optimizer, reference = hvd.DistributedOptimizer(sgd(model)), sgd(alone)
    for epoch in range(2):
        for lap in range(rank + 1):  # rank 2 trains longest
            optimizer.zero_grad()
            loss_of(model, share(rank, 3, lap=lap)).backward()
            optimizer.step()
            assert (hvd.allreduce(torch.ones(3), name="metric", op=hvd.Sum) == 3 - lap).all()
        assert hvd.join() == 2
        for lap in range(3):
            reference.zero_grad()
            for part in range(lap, 3):  # ranks that still had data; the others count as zeros
                (loss_of(alone, share(part, 3, lap=lap)) / 3).backward()
            reference.step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=2)
        hvd.broadcast_optimizer_state(optimizer, root_rank=2)
        assert_same(model, alone)
        assert hvd.allgather_object(epoch) == [epoch] * 3


@on_workers(3)
def test_the_roots_state_is_copied_to_all_ranks(rank: int) -> None:
    makers: list[Any] = [
        lambda p: torch.optim.SGD(p, lr=0.1 * (rank + 1), momentum=0.5),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1 + rank, betas=(0.9 - 0.1 * rank, 0.99), amsgrad=True),
        lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ]
    for make in makers:
        model = make_model(seed=rank)
        optimizer = make(model.parameters())
        if rank == 1:  # only the root continues to train
            loss_of(model, share(0, 1)).backward()
            optimizer.step()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
        hvd.broadcast_optimizer_state(optimizer, root_rank=1, model=model)
        for lap in range(2):
            optimizer.zero_grad()
            loss_of(model, share(rank, 3, lap=lap)).backward()
            optimizer.step()
            scheduler.step()
        undertow_torch.verify_replicas(model)
        first, *others = hvd.allgather_object([{**group, "params": 0} for group in optimizer.param_groups])
        assert all(other == first for other in others)
    # As in Horovod, zero gradients where there was no state; but no step was made.
    model = make_model(seed=0)
    frozen, *others = model.parameters()
    frozen.requires_grad_(False)
    before = [parameter.clone() for parameter in others]
    hvd.broadcast_optimizer_state(torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1), 0)
    assert frozen.grad is None
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in others)
    assert all(map(torch.equal, others, before))
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)


@on_workers(2)
def test_hooks_of_a_step_are_called_once(rank: int) -> None:
    model = make_model()
    plain = sgd(model)
    calls: list[str] = []
    plain.register_step_pre_hook(lambda *_: calls.append("before"))
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)  # made before: it must not hide our step
    optimizer = hvd.DistributedOptimizer(plain)
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for lap in range(2):
        if lap:
            optimizer.load_state_dict(optimizer.state_dict())
        loss_of(model, share(rank, 2)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert calls == ["before", "after"] * 2
    undertow_torch.verify_replicas(model)
    del scheduler


@on_workers(2)
def test_wrong_arguments_are_refused(rank: int) -> None:
    model, other = make_model(), make_model()
    pairs = [*model.named_parameters(), *other.named_parameters()]
    for words, options in {
        "more than once: 0.bias": {"named_parameters": pairs},
        "lacks 3 of the optimizer's 4 parameters": {"named_parameters": list(model.named_parameters())[:1]},
        "pairs of name and parameter": {"named_parameters": model.parameters()},
        "must be at least 1": {"backward_passes_per_step": 0},
        "only possible with op=hvd.Average": {"op": hvd.Sum, "gradient_predivide_factor": 2.0},
        "Adasum is not supported": {"op": hvd.Adasum},
        "op Max does not give a gradient": {"op": hvd.Max},
        "groups is 0": {"groups": 0},
        "must be lists of parameters": {"groups": [["weight"]]},
        "groups contains a parameter more than once": {"groups": [[model[0].weight], [model[0].weight]]},
        "custom compressors": {"compression": object()},
    }.items():
        with pytest.raises(ValueError, match=words) as caught:
            hvd.DistributedOptimizer(sgd(model), **options)  # type: ignore[arg-type]
        assert isinstance(caught.value, ConfigError)
    for wrong in (3, model.state_dict()["0.weight"]):
        with pytest.raises(ValueError, match="takes a state_dict or a list"):
            hvd.broadcast_parameters(wrong, 0)
    optimizer = hvd.DistributedOptimizer(sgd(model), groups=[list(model.parameters())], gradient_predivide_factor=2.0)
    loss_of(model, share(rank, 2)).backward()
    optimizer.step()
    undertow_torch.verify_replicas(model)


@on_workers(2)
def test_different_models_are_an_error(rank: int) -> None:
    with pytest.raises(hvd.HorovodInternalError, match="hold different tensors in the distributed optimizer"):
        hvd.DistributedOptimizer(sgd(make_model(width=3 + rank)))


@on_workers(2)
def test_batches_of_all_ranks_are_normalised_together(rank: int) -> None:
    inputs = torch.randn(7, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    own = inputs[:5] if rank == 0 else inputs[5:]
    for options in ({}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}):
        ours, theirs = hvd.SyncBatchNorm(3, **options).double(), nn.BatchNorm1d(3, **options).double()
        for _ in range(2):
            batch, whole = own.clone().requires_grad_(), inputs.clone().requires_grad_()
            result, expected = ours(batch), theirs(whole)
            part = slice(0, 5) if rank == 0 else slice(5, 7)
            assert torch.allclose(result, expected[part])
            weights = torch.arange(84.0, dtype=torch.float64).reshape(7, 3, 4).sin()
            (result * weights[part]).sum().backward()
            (expected * weights).sum().backward()
            assert torch.allclose(batch.grad, whole.grad[part])  # type: ignore[index]
        for name, parameter in ours.named_parameters():
            total = hvd.allreduce(parameter.grad, op=hvd.Sum)  # type: ignore[arg-type]
            assert torch.allclose(total, theirs.get_parameter(name).grad)  # type: ignore[arg-type]
        for name, buffer in ours.named_buffers():
            assert torch.allclose(buffer, theirs.get_buffer(name)), name
        assert torch.allclose(ours.eval()(own), theirs.eval()(own)) or "track_running_stats" in options
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        hvd.SyncBatchNorm(3)(torch.ones(3))


@on_workers(1)
def test_a_single_rank_trains_as_without_undertow(rank: int) -> None:
    model, alone = make_model(), make_model()
    optimizer, reference = hvd.DistributedOptimizer(sgd(model), op=hvd.Adasum), sgd(alone)
    for net, which in ((model, optimizer), (alone, reference)):
        loss_of(net, share(0, 1)).backward()
        which.step()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(
        hvd.SyncBatchNorm(4)(torch.arange(8.0).view(2, 4)), nn.BatchNorm1d(4)(torch.arange(8.0).view(2, 4))
    )


@on_workers(2, init=False)
def test_arguments_can_be_read_as_attributes(rank: int) -> None:
    hvd.init(process_sets=(sets := [hvd.ProcessSet([0])]))
    for process_set in (hvd.global_process_set, *sets):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1),
            backward_passes_per_step=3,
            op=hvd.Average,
            gradient_predivide_factor=2.0,
            process_set=process_set,
        )
        assert (optimizer.backward_passes_per_step, optimizer.op) == (3, hvd.Average)
        assert (optimizer.gradient_predivide_factor, optimizer.process_set) == (2.0, process_set)
        optimizer.set_backward_passes_per_step(2)
        assert optimizer.backward_passes_per_step == 2
    assert hvd.DistributedOptimizer(torch.optim.SGD([torch.ones(1)], lr=0.1), op=hvd.Sum).op is hvd.Sum
