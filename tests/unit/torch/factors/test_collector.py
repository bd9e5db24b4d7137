"""A collector returns its worker's share of a gradient: each factor once, and no stale one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from undertow.sync.slot import NO_FACTORS, WorkerFactors
from undertow.torch.factors.collector import FactorCollector, Factors, Wanted
from undertow.torch.factors.linear import LinearForm


def make_collector(wanted: Wanted = Wanted.FACTORS) -> tuple[nn.Parameter, FactorCollector]:
    weight = nn.Parameter(torch.zeros(3, 5))
    return weight, FactorCollector(weight, LinearForm(weight), lambda: wanted)


def make_factors(seed: int, rows: int = 2) -> Factors:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 5, generator=generator), torch.randn(rows, 3, generator=generator)


def multiply(factors: Factors) -> torch.Tensor:
    activations, deltas = factors
    return deltas.t() @ activations


def add_up(
    weight: nn.Parameter, collector: FactorCollector, *calls: Factors, beside: torch.Tensor | None = None
) -> None:
    """Run a local backward as autograd does: sum its gradients, then accumulate the sum."""
    made = []
    for factors in calls:
        made.append(multiply(factors))
        collector.keep(factors, made[-1])
    if beside is not None:
        made.append(beside)
    added = made[0] if len(made) == 1 else sum(made)
    assert isinstance(added, torch.Tensor)
    if weight.grad is None:
        weight.grad = added
    else:
        weight.grad += added
    collector.accumulated(added)


def total(taken: WorkerFactors[torch.Tensor]) -> torch.Tensor:
    """Return the gradient that a worker contributes."""
    result = multiply(taken.factors) if taken.factors else torch.zeros(3, 5)
    return result if taken.whole is None else result + taken.whole


def check_total(taken: WorkerFactors[torch.Tensor], expected: torch.Tensor) -> None:
    torch.testing.assert_close(total(taken), expected)


def test_without_a_gradient_there_are_no_factors() -> None:
    _, collector = make_collector()
    assert collector.take() is NO_FACTORS


@pytest.mark.parametrize("kept", [False, True])
def test_factors_computed_on_another_stream_are_read_after_it(monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    """Autograd orders streams by the gradients that it passes on, and there are none for factors."""
    weight, collector = make_collector()
    steps: list[str] = []

    def remember(tensors: Factors) -> Callable[[], Factors]:
        assert [len(tensor) for tensor in tensors] == [2, 2]
        steps.append("made")
        return lambda: steps.append("followed") or tensors

    monkeypatch.setattr("undertow.torch.factors.collector.remember_stream", remember)
    monkeypatch.setattr(collector.form, "join", lambda factors: steps.append("read") or factors[0])
    if kept:
        add_up(weight, collector, make_factors(1))
    else:
        collector.add(make_factors(1))
    assert collector.take().factors
    assert steps == ["made", "followed", "read"]


def test_factors_are_taken_once() -> None:
    _, collector = make_collector()
    collector.add(make_factors(1))
    collector.add(make_factors(2, rows=4))
    taken = collector.take()
    assert [len(factor) for factor in taken.factors] == [6, 6]
    assert taken.whole is None
    check_total(taken, multiply(make_factors(1)) + multiply(make_factors(2, rows=4)))
    assert collector.take() is NO_FACTORS


def test_a_gradient_beside_the_factors_is_sent_along() -> None:
    weight, collector = make_collector()
    weight.grad = torch.ones(3, 5)
    collector.add(make_factors(1))
    taken = collector.take()
    assert taken.whole is weight.grad
    check_total(taken, multiply(make_factors(1)) + 1)


def test_a_gradient_of_zeros_is_present_but_not_sent() -> None:
    weight, collector = make_collector()
    weight.grad = torch.zeros(3, 5)
    assert collector.take() == WorkerFactors((), None)
    weight.grad = torch.full((3, 5), float("nan"))
    assert collector.take().whole is not None


def test_kept_factors_replace_their_gradient() -> None:
    weight, collector = make_collector(Wanted.BOTH)
    add_up(weight, collector, make_factors(1))
    add_up(weight, collector, make_factors(2))
    collector.add(make_factors(3))
    taken = collector.take()
    assert taken.whole is None
    assert len(taken.factors[0]) == 6
    check_total(taken, sum(multiply(make_factors(seed)) for seed in (1, 2, 3)))


def test_factors_that_are_kept_are_copies() -> None:
    weight, collector = make_collector(Wanted.BOTH)
    activations, deltas = make_factors(1)
    add_up(weight, collector, (activations, deltas))
    activations.zero_()
    check_total(collector.take(), multiply(make_factors(1)))


def test_a_layer_called_twice_in_a_local_pass_sends_a_whole_gradient() -> None:
    weight, collector = make_collector(Wanted.BOTH)
    add_up(weight, collector, make_factors(1), make_factors(2))
    check_total(collector.take(), multiply(make_factors(1)) + multiply(make_factors(2)))


def test_a_gradient_that_bypasses_the_layer_in_a_local_pass_is_not_lost() -> None:
    weight, collector = make_collector(Wanted.BOTH)
    add_up(weight, collector, make_factors(1), beside=torch.ones(3, 5))
    check_total(collector.take(), multiply(make_factors(1)) + 1)
    weight, collector = make_collector(Wanted.BOTH)
    add_up(weight, collector, make_factors(1))
    weight.grad = weight.grad + 1  # a pass that wanted no factors
    collector.accumulated(torch.ones(3, 5))
    check_total(collector.take(), multiply(make_factors(1)) + 1)


def halve_in_place(weight: nn.Parameter) -> None:
    assert weight.grad is not None
    weight.grad.mul_(0.5)


def halve_out_of_place(weight: nn.Parameter) -> None:
    # There and back: the memory of the first gradient may be reused.
    for factor in (0.25, 2.0):
        weight.grad = weight.grad * factor  # type: ignore[operator]


def halve_data(weight: nn.Parameter) -> None:
    assert weight.grad is not None
    weight.grad.data.mul_(0.5)


def halve_memory(weight: nn.Parameter) -> None:
    assert weight.grad is not None
    weight.grad.numpy()[:] *= 0.5


@pytest.mark.parametrize("halve", [halve_in_place, halve_out_of_place, halve_data, halve_memory])
def test_a_changed_gradient_invalidates_its_factors(halve: Callable[[nn.Parameter], None]) -> None:
    for _ in range(20):  # memory may be reused
        weight, collector = make_collector(Wanted.BOTH)
        add_up(weight, collector, make_factors(1))
        halve(weight)
        collector.add(make_factors(2))
        check_total(collector.take(), multiply(make_factors(1)) / 2 + multiply(make_factors(2)))
        weight, collector = make_collector(Wanted.BOTH)
        add_up(weight, collector, make_factors(1))
        halve(weight)
        add_up(weight, collector, make_factors(2))
        check_total(collector.take(), multiply(make_factors(1)) / 2 + multiply(make_factors(2)))


def test_a_removed_gradient_removes_its_factors() -> None:
    weight, collector = make_collector(Wanted.BOTH)
    add_up(weight, collector, make_factors(1))
    weight.grad = None
    assert collector.take() is NO_FACTORS
    add_up(weight, collector, make_factors(1))
    weight.grad = None
    add_up(weight, collector, make_factors(2))
    check_total(collector.take(), multiply(make_factors(2)))


@pytest.mark.parametrize("left", [0.0, 1.0])
def test_a_gradient_from_before_the_first_pass_is_not_lost(left: float) -> None:
    weight, collector = make_collector(Wanted.BOTH)
    weight.grad = torch.full((3, 5), left)
    for seed in (1, 2):
        add_up(weight, collector, make_factors(seed))
    check_total(collector.take(), multiply(make_factors(1)) + multiply(make_factors(2)) + left)


def test_factors_are_kept_again_after_they_were_taken() -> None:
    weight, collector = make_collector(Wanted.BOTH)
    add_up(weight, collector, make_factors(1))
    collector.take()
    assert weight.grad is not None
    weight.grad.fill_(7)  # the mean
    add_up(weight, collector, make_factors(2))
    check_total(collector.take(), multiply(make_factors(2)) + 7)


@pytest.mark.parametrize("wanted", list(Wanted))
def test_hooks_need_the_gradient(wanted: Wanted) -> None:
    weight, collector = make_collector(wanted)
    assert collector.find_wanted() is wanted
    handle = weight.register_hook(lambda gradient: None)
    assert collector.find_wanted() is Wanted.GRADIENT
    handle.remove()
    assert collector.find_wanted() is wanted
    handle = weight.register_post_accumulate_grad_hook(lambda parameter: None)
    assert collector.find_wanted() is Wanted.GRADIENT
    handle.remove()
    assert collector.find_wanted() is wanted


def test_the_mean_is_that_of_all_factors_and_all_wholes() -> None:
    _, collector = make_collector()
    whole = torch.randn(3, 5)
    taken = [
        WorkerFactors(make_factors(1)),
        WorkerFactors(make_factors(2, rows=0), whole),
        NO_FACTORS,
        WorkerFactors((), whole),
    ]
    mean = collector.combine(taken, torch.float32)
    torch.testing.assert_close(mean, (multiply(make_factors(1)) + 2 * whole) / 4)
    only_whole = collector.combine([WorkerFactors((), whole), NO_FACTORS], torch.float32)
    torch.testing.assert_close(only_whole, whole / 2)


def test_no_gradients_give_none_and_zeros_give_zeros() -> None:
    _, collector = make_collector()
    assert collector.combine([NO_FACTORS, NO_FACTORS], torch.float32) is None
    zeros = collector.combine([NO_FACTORS, WorkerFactors()], torch.float32)
    assert zeros is not None
    assert not zeros.any()


def test_the_mean_has_the_gradients_type_but_is_computed_in_32_bits() -> None:
    _, collector = make_collector()
    # In 16 bits, 256 + 1 is 256.
    factors = [(torch.ones(1, 5).bfloat16(), torch.full((1, 3), value).bfloat16()) for value in (256.0, 1.0, 1.0, 2.0)]
    mean = collector.combine([WorkerFactors(one) for one in factors], torch.bfloat16)
    assert mean is not None
    assert mean.dtype is torch.bfloat16
    assert (mean == 65).all()
