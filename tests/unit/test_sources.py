"""A source knows what its worker knows of a gradient: no part twice, none that is not in it any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from undertow.torch.factors import Factors
from undertow.torch.pieces import NOTHING, Known
from undertow.torch.sources import Ask, Parts, Source


def make_source(asked: Ask = Ask.PARTS) -> tuple[nn.Parameter, Source]:
    weight = nn.Parameter(torch.zeros(3, 5))
    return weight, Source(weight, Factors(weight), lambda: asked)


def make_parts(seed: int, rows: int = 2) -> Parts:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 5, generator=generator), torch.randn(rows, 3, generator=generator)


def multiply(parts: Parts) -> torch.Tensor:
    activations, deltas = parts
    return deltas.t() @ activations


def add_up(weight: nn.Parameter, source: Source, *calls: Parts, beside: torch.Tensor | None = None) -> None:
    """A backward that is not synchronised, as autograd does it: adds all gradients of it, then adds the sum."""
    made = []
    for parts in calls:
        made.append(multiply(parts))
        source.keep(parts, made[-1])
    if beside is not None:
        made.append(beside)
    added = made[0] if len(made) == 1 else sum(made)
    assert isinstance(added, torch.Tensor)
    if weight.grad is None:
        weight.grad = added
    else:
        weight.grad += added
    source.accumulated(added)


def total(known: Known) -> torch.Tensor:
    """What a worker contributes in the end."""
    result = multiply(known.parts) if known.parts else torch.zeros(3, 5)
    return result if known.whole is None else result + known.whole


def check_total(known: Known, expected: torch.Tensor) -> None:
    torch.testing.assert_close(total(known), expected)


def test_without_a_gradient_there_is_nothing() -> None:
    _, source = make_source()
    assert source.take() is NOTHING


@pytest.mark.parametrize("kept", [False, True])
def test_parts_that_were_made_on_another_stream_are_read_after_it(monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    """Autograd orders streams by the gradients that it hands on, and of parts it hands on none."""
    weight, source = make_source()
    steps: list[str] = []

    def remember(device: torch.device, tensors: Parts) -> Callable[[], None]:
        assert device == weight.device
        assert [len(tensor) for tensor in tensors] == [2, 2]
        steps.append("made")
        return lambda: steps.append("followed")

    monkeypatch.setattr("undertow.torch.sources.remember_stream", remember)
    monkeypatch.setattr(source.form, "join", lambda parts: steps.append("read") or parts[0])
    if kept:
        add_up(weight, source, make_parts(1))
    else:
        source.give(make_parts(1))
    assert source.take().parts
    assert steps == ["made", "followed", "read"]


def test_parts_are_given_once() -> None:
    _, source = make_source()
    source.give(make_parts(1))
    source.give(make_parts(2, rows=4))
    known = source.take()
    assert [len(part) for part in known.parts] == [6, 6]
    assert known.whole is None
    check_total(known, multiply(make_parts(1)) + multiply(make_parts(2, rows=4)))
    assert source.take() is NOTHING


def test_what_the_gradient_holds_besides_goes_along() -> None:
    weight, source = make_source()
    weight.grad = torch.ones(3, 5)
    source.give(make_parts(1))
    known = source.take()
    assert known.whole is weight.grad
    check_total(known, multiply(make_parts(1)) + 1)


def test_a_gradient_of_zeros_is_present_but_does_not_travel() -> None:
    weight, source = make_source()
    weight.grad = torch.zeros(3, 5)
    assert source.take() == Known((), None)
    weight.grad = torch.full((3, 5), float("nan"))
    assert source.take().whole is not None


def test_parts_that_were_kept_go_in_the_place_of_the_gradient_that_they_make() -> None:
    weight, source = make_source(Ask.BOTH)
    add_up(weight, source, make_parts(1))
    add_up(weight, source, make_parts(2))
    source.give(make_parts(3))
    known = source.take()
    assert known.whole is None
    assert len(known.parts[0]) == 6
    check_total(known, sum(multiply(make_parts(seed)) for seed in (1, 2, 3)))


def test_parts_that_are_kept_are_copies() -> None:
    weight, source = make_source(Ask.BOTH)
    activations, deltas = make_parts(1)
    add_up(weight, source, (activations, deltas))
    activations.zero_()
    check_total(source.take(), multiply(make_parts(1)))


def test_a_layer_that_is_called_twice_in_such_a_pass_gives_a_whole_gradient() -> None:
    weight, source = make_source(Ask.BOTH)
    add_up(weight, source, make_parts(1), make_parts(2))
    check_total(source.take(), multiply(make_parts(1)) + multiply(make_parts(2)))


def test_what_comes_another_way_in_such_a_pass_is_not_lost() -> None:
    weight, source = make_source(Ask.BOTH)
    add_up(weight, source, make_parts(1), beside=torch.ones(3, 5))
    check_total(source.take(), multiply(make_parts(1)) + 1)
    weight, source = make_source(Ask.BOTH)
    add_up(weight, source, make_parts(1))
    weight.grad = weight.grad + 1  # a pass in which nobody was asked
    source.accumulated(torch.ones(3, 5))
    check_total(source.take(), multiply(make_parts(1)) + 1)


def halve_in_place(weight: nn.Parameter) -> None:
    assert weight.grad is not None
    weight.grad.mul_(0.5)


def halve_out_of_place(weight: nn.Parameter) -> None:
    # Once more and back: the memory of the first gradient may be used again.
    for factor in (0.25, 2.0):
        weight.grad = weight.grad * factor  # type: ignore[operator]


def halve_data(weight: nn.Parameter) -> None:
    assert weight.grad is not None
    weight.grad.data.mul_(0.5)


def halve_memory(weight: nn.Parameter) -> None:
    assert weight.grad is not None
    weight.grad.numpy()[:] *= 0.5


@pytest.mark.parametrize("halve", [halve_in_place, halve_out_of_place, halve_data, halve_memory])
def test_a_gradient_that_somebody_changes_is_not_what_the_parts_make(halve: Callable[[nn.Parameter], None]) -> None:
    for _ in range(20):  # memory is used again, or not
        weight, source = make_source(Ask.BOTH)
        add_up(weight, source, make_parts(1))
        halve(weight)
        source.give(make_parts(2))
        check_total(source.take(), multiply(make_parts(1)) / 2 + multiply(make_parts(2)))
        weight, source = make_source(Ask.BOTH)
        add_up(weight, source, make_parts(1))
        halve(weight)
        add_up(weight, source, make_parts(2))
        check_total(source.take(), multiply(make_parts(1)) / 2 + multiply(make_parts(2)))


def test_a_gradient_that_somebody_forgets_is_forgotten() -> None:
    weight, source = make_source(Ask.BOTH)
    add_up(weight, source, make_parts(1))
    weight.grad = None
    assert source.take() is NOTHING
    add_up(weight, source, make_parts(1))
    weight.grad = None
    add_up(weight, source, make_parts(2))
    check_total(source.take(), multiply(make_parts(2)))


@pytest.mark.parametrize("left", [0.0, 1.0])
def test_what_was_in_the_gradient_before_the_first_pass_is_not_lost(left: float) -> None:
    weight, source = make_source(Ask.BOTH)
    weight.grad = torch.full((3, 5), left)
    for seed in (1, 2):
        add_up(weight, source, make_parts(seed))
    check_total(source.take(), multiply(make_parts(1)) + multiply(make_parts(2)) + left)


def test_parts_are_kept_anew_after_they_were_taken() -> None:
    weight, source = make_source(Ask.BOTH)
    add_up(weight, source, make_parts(1))
    source.take()
    assert weight.grad is not None
    weight.grad.fill_(7)  # the mean
    add_up(weight, source, make_parts(2))
    check_total(source.take(), multiply(make_parts(2)) + 7)


@pytest.mark.parametrize("asked", list(Ask))
def test_hooks_want_to_see_the_gradient(asked: Ask) -> None:
    weight, source = make_source(asked)
    assert source.ask() is asked
    handle = weight.register_hook(lambda gradient: None)
    assert source.ask() is Ask.GRADIENT
    handle.remove()
    assert source.ask() is asked
    handle = weight.register_post_accumulate_grad_hook(lambda parameter: None)
    assert source.ask() is Ask.GRADIENT
    handle.remove()
    assert source.ask() is asked


def test_the_mean_is_that_of_all_parts_and_all_wholes() -> None:
    _, source = make_source()
    whole = torch.randn(3, 5)
    known = [Known(make_parts(1)), Known(make_parts(2, rows=0), whole), NOTHING, Known((), whole)]
    mean = source.make(known, torch.float32)
    torch.testing.assert_close(mean, (multiply(make_parts(1)) + 2 * whole) / 4)
    only_whole = source.make([Known((), whole), NOTHING], torch.float32)
    torch.testing.assert_close(only_whole, whole / 2)


def test_if_nobody_has_a_gradient_there_is_none_and_if_somebody_has_zeros_there_are() -> None:
    _, source = make_source()
    assert source.make([NOTHING, NOTHING], torch.float32) is None
    zeros = source.make([NOTHING, Known()], torch.float32)
    assert zeros is not None
    assert not zeros.any()


def test_the_mean_is_of_the_type_of_the_gradient_but_made_in_32_bits() -> None:
    _, source = make_source()
    # At 16 bits 256 + 1 is 256 again.
    parts = [(torch.ones(1, 5).bfloat16(), torch.full((1, 3), value).bfloat16()) for value in (256.0, 1.0, 1.0, 2.0)]
    mean = source.make([Known(one) for one in parts], torch.bfloat16)
    assert mean is not None
    assert mean.dtype is torch.bfloat16
    assert (mean == 65).all()
