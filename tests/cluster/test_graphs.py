"""Any graph works: different ones per rank or step, with two backward passes or none."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import undertow
import undertow.torch
from tests.support.single_process import run
from tests.support.workers import on_workers, run_workers
from undertow.torch import DistributedDataParallel, parallelize
from undertow.torch.slots.broadcast import Broadcast


def make_layers(count: int = 3, width: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(count)))


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters()]


def expected(inputs: torch.Tensor, loss_of: Any, module: nn.Module | None = None) -> list[torch.Tensor]:
    """Return the gradients of one process for the mean of both ranks' losses."""
    alone = module or make_layers()
    torch.stack([loss_of(alone, part) for part in inputs]).mean().backward()
    return gradients(alone)


def both_inputs() -> torch.Tensor:
    return torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(3))


def check(rank: int, loss_of: Any, make: Any = make_layers) -> DistributedDataParallel:
    """Check that one synchronised pass with this loss equals one process."""
    inputs = both_inputs()
    model = DistributedDataParallel(make())
    loss_of(model, inputs[rank]).backward()
    torch.testing.assert_close(gradients(model), expected(inputs, loss_of, make()))
    return model


class Branches(nn.Module):
    """A net in which each call takes another branch."""

    def __init__(self, branches: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.branches = nn.ModuleList(nn.Linear(4, 4) for _ in range(branches))

    def forward(self, inputs: torch.Tensor, way: list[int]) -> torch.Tensor:
        hidden = self.first(inputs)
        for branch in way:
            hidden = self.branches[branch](hidden)
        return hidden.sum()


@on_workers(3)
def test_graphs_that_differ_per_step_and_per_rank_need_no_flag(rank: int) -> None:
    torch.manual_seed(0)
    alone, together = Branches(5), Branches(5)
    together.load_state_dict(alone.state_dict())
    model = DistributedDataParallel(together)
    choice = torch.Generator().manual_seed(5)
    for _ in range(20):
        inputs = torch.randn(3, 2, 4, generator=choice)
        ways = [
            torch.randint(5, (int(torch.randint(4, (), generator=choice)),), generator=choice).tolist() for _ in "abc"
        ]
        for module in (alone, model):
            module.zero_grad()
        torch.stack([alone(part, way) for part, way in zip(inputs, ways, strict=True)]).mean().backward()
        model(inputs[rank], ways[rank]).backward()
        for ours, theirs in zip(together.parameters(), alone.parameters(), strict=True):
            assert (ours.grad is None) is (theirs.grad is None)
            if theirs.grad is not None:
                torch.testing.assert_close(ours.grad, theirs.grad)


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.layers = make_layers()
        self.use_reentrant = use_reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        # One layer inside two checkpoints: its gradient is complete only at the end.
        for layer in (*self.layers, self.layers[0]):
            inputs = checkpoint(layer, inputs, use_reentrant=self.use_reentrant)
        return self.layers[1](inputs) if not self.use_reentrant else inputs


@on_workers(2)
def test_checkpoints_without_reentry_work(rank: int) -> None:
    check(rank, lambda model, inputs: model(inputs).pow(2).sum(), lambda: Checkpointed(use_reentrant=False))


@on_workers(2)
def test_reentrant_checkpoints_work(rank: int) -> None:
    def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return model(inputs.clone().requires_grad_()).pow(2).sum()

    check(rank, loss_of, lambda: Checkpointed(use_reentrant=True))


class HalfCheckpointed(Checkpointed):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers[0](checkpoint(self.layers[0], inputs, use_reentrant=True))


@on_workers(2)
def test_a_layer_outside_and_inside_a_reentrant_checkpoint_is_refused(rank: int) -> None:
    """Its gradient is sent when the outer pass has computed it; what the inner one adds would be lost silently."""
    model = DistributedDataParallel(HalfCheckpointed(use_reentrant=True))
    outputs = model(both_inputs()[rank].clone().requires_grad_())
    with pytest.raises(undertow.UndertowError, match=r"'layers\.0\.0\..*became ready twice.*use_reentrant=False"):
        outputs.sum().backward()


class WithBuffers(nn.Module):
    """Batch norm, a part with its own checkpoint, and a parameter outside all checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4))
        self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs) + checkpoint(self.head, inputs, use_reentrant=False)


def once(model: nn.Module, inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    return checkpoint(model, inputs, **options)  # type: ignore[no-any-return]


def twice(model: nn.Module, inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    return once(model, once(model, inputs, **options), **options)


def side_by_side(model: nn.Module, inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    return once(model, inputs, **options) * once(model, inputs + 1, **options)


def one_in_another(model: nn.Module, inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    return checkpoint(lambda inputs: once(model, inputs, **options).tanh(), inputs, **options)  # type: ignore[no-any-return]


def beside_a_call(model: nn.Module, inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    return once(model, inputs, **options) * model(inputs + 1)


def after_another_gradient(model: nn.Module, inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    """Run another gradient first, which begins the pass in a single-process script."""
    return once(model, inputs, **options) * getattr(model, "module", model).scale


def accumulated(model: Any, inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    with model.no_sync() if hasattr(model, "no_sync") else nullcontext():
        once(model, inputs - 1, **options).square().sum().backward()
    return once(model, inputs, **options)


CHECKPOINTS = [
    *(
        (use, use_reentrant)
        for use in (once, twice, side_by_side, one_in_another, accumulated)
        for use_reentrant in (False, True)
    ),
    (beside_a_call, False),
    (after_another_gradient, False),
]


def differentiate(use: Any, use_reentrant: bool, model: nn.Module, inputs: torch.Tensor) -> None:
    use(model, inputs.clone().requires_grad_(), use_reentrant=use_reentrant).square().sum().backward()


def train_in_checkpoints(rank: int, use: Any, use_reentrant: bool, wrap: Any) -> None:
    """Check that each step equals that of one process, with the mean loss over the inputs of all ranks."""
    raw = WithBuffers()
    model, optimizer = wrap(raw, torch.optim.SGD(raw.parameters(), lr=0.01))
    for _ in range(5):
        alone = WithBuffers()
        alone.load_state_dict({name: tensor.detach().clone() for name, tensor in raw.state_dict().items()})
        for inputs in both_inputs():
            differentiate(use, use_reentrant, alone, inputs)
        optimizer.zero_grad()
        differentiate(use, use_reentrant, model, both_inputs()[rank])
        for ours, theirs in zip(raw.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, None if theirs.grad is None else theirs.grad / 2)
        optimizer.step()


def leave_as_it_is(*objects: Any) -> Any:
    return objects


@on_workers(2)
def test_a_wrapped_model_in_checkpoints(rank: int) -> None:
    for use, use_reentrant in CHECKPOINTS:
        for plan in ("dense", "factors"):
            train_in_checkpoints(
                rank, use, use_reentrant, lambda m, o, plan=plan: (DistributedDataParallel(m, plan=plan), o)
            )
            train_in_checkpoints(rank, use, use_reentrant, lambda m, o, plan=plan: parallelize(m, o, plan=plan))


def train_a_script_in_checkpoints(rank: int) -> None:
    for use, use_reentrant in CHECKPOINTS:
        train_in_checkpoints(rank, use, use_reentrant, leave_as_it_is)


def test_a_single_process_script_with_its_model_in_checkpoints() -> None:
    run(2, train_a_script_in_checkpoints)
    run(2, train_a_script_in_checkpoints, UNDERTOW_OVERLAP="on")


def wrap_in_ddp(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return DistributedDataParallel(model), optimizer


def count_copies(rank: int, wrap: Any) -> int:
    copies: list[Any] = []
    run_broadcast = Broadcast.run
    Broadcast.run = lambda self, *given, **options: copies.append(given) or run_broadcast(self, *given, **options)  # type: ignore[method-assign, assignment, func-returns-value]
    raw = WithBuffers()
    model, _ = wrap(raw, torch.optim.SGD(raw.parameters(), lr=0.01))
    copies.clear()
    for _ in range(3):
        after_another_gradient(model, both_inputs()[rank], use_reentrant=False).sum().backward()
        once(model, both_inputs()[rank], use_reentrant=False).sum().backward()
    return len(copies)


def test_recomputation_in_a_checkpoint_copies_no_buffers() -> None:
    assert run_workers(2, count_copies, wrap_in_ddp) == [6, 6]
    assert run(2, count_copies, leave_as_it_is) == [6, 6]


@on_workers(2)
def test_two_forwards_and_one_backward(rank: int) -> None:
    check(rank, lambda model, inputs: (model(inputs) * model(inputs + 1)).sum())


@on_workers(2)
def test_two_forwards_and_two_backwards(rank: int) -> None:
    inputs = both_inputs()
    model = DistributedDataParallel(make_layers())
    first, second = model(inputs[rank]), model(inputs[rank] + 1)
    second.sum().backward()
    first.pow(2).sum().backward()
    wanted = expected(inputs, lambda alone, part: alone(part).pow(2).sum() + alone(part + 1).sum())
    torch.testing.assert_close(gradients(model), wanted)


@on_workers(2)
def test_two_backwards_of_one_forward(rank: int) -> None:
    inputs = both_inputs()
    model = DistributedDataParallel(make_layers())
    loss = model(inputs[rank]).pow(2).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    wanted = expected(inputs, lambda alone, part: 2 * alone(part).pow(2).sum())
    torch.testing.assert_close(gradients(model), wanted)


def penalty(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    inputs = inputs.clone().requires_grad_()
    outputs = model(inputs)
    slope = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)[0]
    return outputs.pow(2).sum() + slope.pow(2).sum()


@on_workers(2)
def test_a_gradient_penalty_sees_its_own_gradients_and_the_step_the_mean(rank: int) -> None:
    check(rank, penalty)


def curvature(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    loss = model(inputs).pow(2).sum()
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + sum(slope.pow(2).sum() for slope in slopes)


@on_workers(2)
def test_gradients_with_respect_to_parameters_stay_local_until_backward(rank: int) -> None:
    check(rank, curvature)


@on_workers(2)
def test_autograd_grad_alone_sends_nothing(rank: int) -> None:
    inputs = both_inputs()
    model, alone = DistributedDataParallel(make_layers()), make_layers()
    for module in (model, alone):
        module.own = torch.autograd.grad(module(inputs[rank]).sum(), list(module.parameters()))
    torch.testing.assert_close(model.own, alone.own)
    model(inputs[rank]).sum().backward()
    torch.testing.assert_close(gradients(model), expected(inputs, lambda alone, part: alone(part).sum()))


@on_workers(2)
def test_backward_with_chosen_inputs_synchronises_those(rank: int) -> None:
    inputs = both_inputs()
    model, alone = DistributedDataParallel(make_layers()), make_layers()
    chosen = [model.module[1][0].weight]
    model(inputs[rank]).sum().backward(inputs=chosen)
    torch.stack([alone(part).sum() for part in inputs]).mean().backward()
    torch.testing.assert_close(chosen[0].grad, alone[1][0].weight.grad)
    assert model.module[0][0].weight.grad is None


@on_workers(2)
def test_backward_with_create_graph_gives_the_mean(rank: int) -> None:
    inputs = both_inputs()
    model = DistributedDataParallel(make_layers())
    with pytest.warns(UserWarning, match="create_graph=True"):  # torch's warning about a reference cycle
        model(inputs[rank]).pow(2).sum().backward(create_graph=True)
    torch.testing.assert_close(
        [gradient.detach() for gradient in gradients(model)],
        expected(inputs, lambda alone, part: alone(part).pow(2).sum()),
    )
    model.zero_grad()


@dataclass
class Record:
    hidden: Any
    other: Any = None


class Nested(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = make_layers()
        self.kind = kind

    def forward(self, inputs: torch.Tensor) -> Any:
        outputs, unused = self.layers(inputs), self.layers[0](inputs)
        if self.kind == "opaque":
            return lambda: outputs
        return {
            "dict": {"deep": [{"out": outputs}], "unused": unused, "text": "x"},
            "tuple": (None, (unused, [outputs])),
            "dataclass": Record([Record(outputs)], unused),
        }[self.kind]


PICK = {
    "dict": lambda out: out["deep"][0]["out"],
    "tuple": lambda out: out[1][1][0],
    "dataclass": lambda out: out.hidden[0].hidden,
    "opaque": lambda out: out(),
}


@on_workers(2)
def test_outputs_may_be_nested_unused_or_hidden(rank: int) -> None:
    for kind, pick in PICK.items():
        check(rank, lambda model, inputs, pick=pick: pick(model(inputs)).sum(), lambda kind=kind: Nested(kind))


@on_workers(2)
def test_outputs_may_be_changed_in_place(rank: int) -> None:
    def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        outputs = model(inputs)
        outputs += 1
        return outputs.pow(2).sum()

    check(rank, loss_of, make_linear)


def make_linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 4)


@on_workers(2)
def test_a_forward_without_gradients_in_between_changes_nothing(rank: int) -> None:
    inputs = both_inputs()
    model = DistributedDataParallel(make_layers())
    outputs = model(inputs[rank])
    with torch.no_grad():
        if rank == 0:
            model(inputs[rank])  # only rank 0 looks at a sample
    model.eval()
    with torch.inference_mode():
        assert torch.equal(model(inputs[rank]), outputs)
    model.train()
    outputs.sum().backward()
    torch.testing.assert_close(gradients(model), expected(inputs, lambda alone, part: alone(part).sum()))


@on_workers(2)
def test_a_forward_without_backward_changes_nothing(rank: int) -> None:
    inputs = both_inputs()
    model = DistributedDataParallel(make_layers())
    model(inputs[rank])
    model(inputs[rank]).sum().backward()
    torch.testing.assert_close(gradients(model), expected(inputs, lambda alone, part: alone(part).sum()))


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("of the user")


class BreaksOff(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = make_layers(2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(Broken.apply(self.first(inputs)))


def break_off(rank: int, wrap: Any) -> None:
    raw = BreaksOff()
    model, _ = wrap(raw, torch.optim.SGD(raw.parameters(), lr=0.01))
    inputs = both_inputs()[rank].requires_grad_()
    with pytest.raises(ArithmeticError, match="of the user"):
        model(inputs).sum().backward()
    with pytest.raises(undertow.UndertowError, match="was interrupted by an exception"):
        model(inputs)
    # Recomputation in another backward does not belong to the interrupted one.
    with pytest.raises(undertow.UndertowError, match="was interrupted by an exception"):
        once(model, inputs, use_reentrant=True).sum().backward()


def test_an_interrupted_backward_is_reported_at_the_next_forward() -> None:
    run_workers(2, break_off, wrap_in_ddp)
    run(2, break_off, leave_as_it_is)


@on_workers(2)
def test_two_models_take_turns_as_in_a_gan(rank: int) -> None:
    inputs = both_inputs()

    def train(generator: nn.Module, critic: nn.Module, parts: torch.Tensor) -> list[torch.Tensor]:
        optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (generator, critic)]
        for _ in range(5):
            for optimizer, sign in zip(optimizers, (1, -1), strict=True):
                for each in optimizers:
                    each.zero_grad()
                torch.stack([sign * critic(generator(part)).tanh().sum() for part in parts]).mean().backward()
                optimizer.step()
        return [parameter.detach() for module in (generator, critic) for parameter in module.parameters()]

    alone = train(make_layers(2), make_layers(1), inputs)
    together = DistributedDataParallel(make_layers(2)), DistributedDataParallel(make_layers(1))
    torch.testing.assert_close(train(*together, inputs[rank : rank + 1]), alone)


@on_workers(2)
def test_two_wrappers_of_one_module_work_side_by_side(rank: int) -> None:
    inputs = both_inputs()
    module = make_layers()
    models = DistributedDataParallel(module), DistributedDataParallel(module)
    wanted = expected(inputs, lambda alone, part: alone(part).sum())
    for model in (*models, *models):
        module.zero_grad()
        model(inputs[rank]).sum().backward()
        torch.testing.assert_close(gradients(module), wanted)
    module.zero_grad()
    (models[0](inputs[rank]) + models[1](inputs[rank])).sum().backward()
    torch.testing.assert_close(gradients(module), [2 * gradient for gradient in wanted])


@on_workers(2)
def test_two_wrappers_do_not_send_a_gradient_while_it_is_replaced(rank: int) -> None:
    module = nn.Linear(3_000, 1_000, bias=False)  # many slices, sent and received in place
    models = DistributedDataParallel(module), DistributedDataParallel(module)
    for _ in range(3):
        module.zero_grad()
        sum(model(torch.full((1, 3_000), float(rank))).sum() for model in models).backward()
        assert (module.weight.grad == 1).all()


@on_workers(2)
def test_a_module_can_be_wrapped_again(rank: int) -> None:
    inputs = both_inputs()
    model = DistributedDataParallel(make_layers())
    wanted = expected(inputs, lambda alone, part: alone(part).sum())
    for _ in range(3):
        model = DistributedDataParallel(model.module)
        model.zero_grad()
        model(inputs[rank]).sum().backward()
        torch.testing.assert_close(gradients(model), wanted)


@on_workers(2)
def test_a_wrapper_in_a_wrapper_works(rank: int) -> None:
    inputs = both_inputs()
    inner = DistributedDataParallel(make_layers(1))
    outer = DistributedDataParallel(nn.Sequential(inner, make_linear()))
    alone = nn.Sequential(make_layers(1), make_linear())
    outer(inputs[rank]).sum().backward()
    torch.testing.assert_close(gradients(outer), expected(inputs, lambda alone, part: alone(part).sum(), alone))
