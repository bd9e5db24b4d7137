"""Guarantees of torch's class about gradients, on real workers."""

from __future__ import annotations

import torch
from torch import nn

import undertow
import undertow.torch
from tests.support.workers import on_workers
from undertow.torch import DistributedDataParallel

# Large enough to have slices of its own; smaller tensors are fused.
LARGE = 300_000


class Weights(nn.Module):
    """Named weights, each multiplied by the input of the same name; the others are unused."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.weights = nn.ParameterDict({name: torch.ones(size) for name, size in sizes.items()})

    def __getitem__(self, name: str) -> nn.Parameter:
        return self.weights[name]

    def forward(self, **inputs: float) -> torch.Tensor:
        return sum((self.weights[name] * value).sum() for name, value in inputs.items())


def is_all(tensor: torch.Tensor | None, value: float) -> bool:
    return tensor is not None and bool((tensor == value).all())


@on_workers(4)
def test_grad_is_the_mean_right_after_backward(rank: int) -> None:
    model = DistributedDataParallel(Weights(a=3, b=LARGE))
    model(a=rank, b=10 * rank).backward()
    assert is_all(model.module["a"].grad, 1.5)
    assert is_all(model.module["b"].grad, 15)


@on_workers(3)
def test_all_ranks_start_with_the_weights_and_buffers_of_rank_0(rank: int) -> None:
    torch.manual_seed(rank)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    module[1].running_mean += rank + 1
    module[1].num_batches_tracked += 7 + rank
    DistributedDataParallel(module)
    torch.manual_seed(0)
    assert torch.equal(module[0].weight, nn.Linear(4, 4).weight)
    assert is_all(module[1].running_mean, 1)
    assert is_all(module[1].num_batches_tracked, 7)


@on_workers(2)
def test_without_init_sync_each_rank_keeps_its_own_weights(rank: int) -> None:
    module = Weights(a=2)
    with torch.no_grad():
        module["a"].fill_(rank)
    DistributedDataParallel(module, init_sync=False)
    assert is_all(module["a"], rank)


@on_workers(2)
def test_both_kinds_of_zero_grad_work(rank: int) -> None:
    model = DistributedDataParallel(Weights(a=3, b=LARGE))
    for step, to_none in enumerate((False, True, False, False, True)):
        model.zero_grad(set_to_none=to_none)
        model(a=rank + step, b=rank).backward()
        assert is_all(model.module["a"].grad, 0.5 + step)
        assert is_all(model.module["b"].grad, 0.5)


@on_workers(3)
def test_a_grad_is_none_only_if_no_rank_produced_one(rank: int) -> None:
    model = DistributedDataParallel(Weights(all=2, one=2, none=2, large_one=LARGE, large_none=LARGE))
    model(all=1, **({"one": 6, "large_one": 3} if rank == 1 else {})).backward()
    assert is_all(model.module["all"].grad, 1)
    assert is_all(model.module["one"].grad, 2)
    assert is_all(model.module["large_one"].grad, 1)
    assert model.module["none"].grad is None
    assert model.module["large_none"].grad is None


@on_workers(2)
def test_gradients_accumulate_over_synchronised_passes(rank: int) -> None:
    model = DistributedDataParallel(Weights(a=3, b=LARGE))
    for step in range(1, 4):
        model(a=rank, b=2 * rank).backward()
        assert is_all(model.module["a"].grad, 0.5 * step)
        assert is_all(model.module["b"].grad, step)


@on_workers(2)
def test_no_sync_accumulates_locally_and_the_next_pass_sends_it_all(rank: int) -> None:
    model = DistributedDataParallel(Weights(a=3, b=LARGE, only_inside=2))
    with model.no_sync():
        for _ in range(3):
            model(a=rank + 1, b=1, only_inside=rank).backward()
    assert is_all(model.module["a"].grad, 3 * (rank + 1))
    model(a=4 * rank, b=rank).backward()
    assert is_all(model.module["a"].grad, (3 + 10) / 2)
    assert is_all(model.module["b"].grad, 3.5)
    assert is_all(model.module["only_inside"].grad, 1.5)


@on_workers(2)
def test_the_forward_decides_whether_its_backward_is_synchronised(rank: int) -> None:
    model = DistributedDataParallel(Weights(a=3))
    with model.no_sync():
        inside = model(a=rank)
    inside.backward()
    assert is_all(model.module["a"].grad, rank)
    model.zero_grad()
    outside = model(a=rank)
    with model.no_sync():
        outside.backward()
    assert is_all(model.module["a"].grad, 0.5)


@on_workers(2)
def test_no_sync_also_ends_with_an_exception(rank: int) -> None:
    model = DistributedDataParallel(Weights(a=3))
    try:
        with model.no_sync():
            raise KeyError
    except KeyError:
        pass
    model(a=rank).backward()
    assert is_all(model.module["a"].grad, 0.5)


@on_workers(2)
def test_a_frozen_parameter_takes_part_once_it_is_unfrozen(rank: int) -> None:
    module = Weights(a=3, b=3, c=LARGE)
    module["b"].requires_grad_(False)
    module["c"].requires_grad_(False)
    model = DistributedDataParallel(module)
    model(a=rank, b=1, c=1).backward()
    assert module["b"].grad is None
    module["b"].requires_grad_(True)
    model(a=rank, b=rank, c=1).backward()
    assert is_all(module["b"].grad, 0.5)
    module["c"].requires_grad_(True)
    module["b"].requires_grad_(False)
    module["b"].grad = None
    model(a=rank, b=rank, c=rank).backward()
    assert is_all(module["a"].grad, 1.5)
    assert module["b"].grad is None
    assert is_all(module["c"].grad, 0.5)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        return self.head(torch.tanh(self.head(hidden) @ self.head.weight))


@on_workers(2)
def test_tied_weights_used_several_times_are_sent_once_and_whole(rank: int) -> None:
    torch.manual_seed(0)
    alone, tokens = Tied(), torch.tensor([[0, 1, 6], [2, 1, 3]])
    model = DistributedDataParallel(Tied())
    model.load_state_dict({f"module.{name}": value for name, value in alone.state_dict().items()})
    alone(tokens).pow(2).mean().backward()
    model(tokens[rank : rank + 1]).pow(2).mean().backward()
    assert len(list(model.parameters())) == 1
    torch.testing.assert_close(model.module.head.weight.grad, alone.head.weight.grad)


@on_workers(2)
def test_clipping_sees_the_averaged_gradient(rank: int) -> None:
    model = DistributedDataParallel(Weights(a=4))
    model(a=6 if rank else 0).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert norm == 6.0  # four times 3, not 0 or 12
    torch.testing.assert_close(model.module["a"].grad, torch.full((4,), 0.5), rtol=1e-5, atol=0)


@on_workers(2)
def test_the_grad_scaler_skips_a_step_on_all_ranks_if_one_overflows(rank: int) -> None:
    model = DistributedDataParallel(Weights(a=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for value, expected in ((2.0 * rank, 0.0), (float("inf") if rank else 1.0, 0.0), (1.0, -1.0)):
        optimizer.zero_grad()
        scaler.scale(model(a=value)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert is_all(model.module["a"], expected)
    assert scaler.get_scale() == 4.0


@on_workers(2)
def test_an_optimizer_with_a_closure_goes_the_same_way_on_all_ranks(rank: int) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(16, 5)
    targets = inputs @ torch.randn(5, 1)
    alone, together = nn.Linear(5, 1), nn.Linear(5, 1)
    together.load_state_dict(alone.state_dict())
    share = slice(8 * rank, 8 * rank + 8)
    for model, part in ((alone, slice(0, 16)), (DistributedDataParallel(together), share)):
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=10)

        def closure(
            model: nn.Module = model, part: slice = part, optimizer: torch.optim.Optimizer = optimizer
        ) -> float:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs[part]), targets[part])
            loss.backward()
            # The loss decides when it stops, so all ranks must see the same loss.
            return loss.detach() * 0 + sum(p.grad.abs().sum() for p in model.parameters())

        optimizer.step(closure)
    torch.testing.assert_close(together.weight, alone.weight, rtol=1e-4, atol=1e-5)
    undertow.torch.verify_replicas(together)


@on_workers(2)
def test_a_gradient_in_another_memory_format_keeps_it(rank: int) -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(64, 128, 3).to(memory_format=torch.channels_last)  # large enough for slices of its own
    model = DistributedDataParallel(module)
    images = torch.randn(2, 64, 5, 5)
    model(images[rank : rank + 1]).sum().backward()
    ours = module.weight.grad.clone()
    assert module.weight.grad.is_contiguous(memory_format=torch.channels_last)
    module.zero_grad()
    module(images).sum().div(2).backward()
    torch.testing.assert_close(ours, module.weight.grad)


@on_workers(2)
def test_a_gradient_with_overlapping_memory_is_averaged(rank: int) -> None:
    class Passing(torch.autograd.Function):
        """A function whose gradient's rows share the same memory."""

        @staticmethod
        def forward(context: object, weight: torch.Tensor, value: float) -> torch.Tensor:
            context.shape, context.value = weight.shape, value
            return weight.sum() * value

        @staticmethod
        def backward(context: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            return (gradient * context.value).expand(context.shape), None

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([torch.ones(2, 3), torch.ones(3, LARGE)])

        def forward(self, value: float) -> torch.Tensor:
            return sum(Passing.apply(weight, value) for weight in self.weights)

    model = DistributedDataParallel(Module())
    model(float(rank)).backward()
    assert all(is_all(weight.grad, 0.5) for weight in model.module.weights)


def train_embedding(model: nn.Module, tokens: torch.Tensor | None) -> torch.Tensor:
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(tokens).backward()
        optimizer.step()
    return next(model.parameters()).detach()


class Rows(nn.Module):
    def __init__(self, rows: int, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, 8, sparse=sparse)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens: torch.Tensor | None) -> torch.Tensor:
        return self.scale * (self.embedding(tokens).pow(2).mean() if tokens is not None else 1)


def check_sparse(rank: int, rows: int, tokens: list[torch.Tensor | None]) -> None:
    torch.sparse.check_sparse_tensor_invariants.enable()  # else torch warns
    results = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = DistributedDataParallel(Rows(rows, sparse))
        results.append(train_embedding(model, tokens[rank]))
        assert model.module.embedding.weight.grad.is_sparse is sparse
        undertow.torch.verify_replicas(model)
    torch.testing.assert_close(*results)


@on_workers(2)
def test_sparse_gradients_stay_sparse_and_equal_dense_ones(rank: int) -> None:
    for rows in (20, LARGE // 8):
        check_sparse(rank, rows, [torch.tensor([1, 2, 2]), torch.tensor([2, 19])])


@on_workers(2)
def test_a_rank_without_a_sparse_gradient_gets_a_sparse_one(rank: int) -> None:
    for rows in (20, LARGE // 8):
        check_sparse(rank, rows, [torch.tensor([1, 2, 2]), None])
