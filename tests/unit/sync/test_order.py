"""The order of use: the latest forward pass is the best guess of the next, and earlier passes go first."""

from __future__ import annotations

import torch

from undertow.sync.order import URGENT, UseOrder


def test_until_they_are_used_tensors_are_in_the_order_of_the_model() -> None:
    order = UseOrder("abc")
    assert order.positions("cab") == [2, 0, 1]
    order.use("c")
    assert order.positions("abc") == [0, 1, 0]


def test_the_first_use_in_a_forward_pass_decides_the_position() -> None:
    order = UseOrder("abc")
    order.use("cb")
    order.use("ca")
    assert order.positions("abc") == [2, 1, 0]


def test_the_next_forward_pass_is_followed_from_its_beginning() -> None:
    order = UseOrder("abc")
    order.use("cba")
    order.end_pass()
    order.use("bc")
    assert order.positions("abc") == [2, 0, 1]  # `a` stays where it was


def test_gradients_of_later_passes_are_less_urgent_across_models() -> None:
    first, second = UseOrder("abc"), UseOrder("xy")
    first.begin_backward()
    early = first.prioritise("abc")
    second.begin_backward()
    late = second.prioritise("xy")
    assert early == sorted(early)
    assert max(early) < min(late)
    first.begin_backward()
    assert max(late) < min(first.prioritise("abc"))


def test_a_backward_pass_ends_the_forward_pass() -> None:
    order = UseOrder("ab")
    order.use("b")
    order.begin_backward()
    order.use("a")
    assert order.positions("ab") == [0, 0]


def test_transfers_that_a_forward_pass_waits_for_precede_all_gradients() -> None:
    order = UseOrder("a")
    order.begin_backward()
    assert min(order.prioritise("a")) > URGENT


def test_parameters_that_were_never_seen_come_last() -> None:
    known, unknown = torch.zeros(1), torch.zeros(1)
    assert UseOrder([known]).positions([unknown, known]) == [1, 0]
