"""Which backward passes are synchronised, and the order of calls, without a group."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.support.pass_bench import LOCAL, OF_A_PASS, Bench, Calls, FakeOverlap, FakePlanning, make_net
from undertow.errors import UndertowError
from undertow.torch.claims.step_check import check, claim, forget_all
from undertow.torch.factors.collector import Wanted


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("of the user")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_backward_of_a_requesting_forward_is_a_pass(bench: Bench) -> None:
    for _ in range(2):
        bench.forward().backward()
        assert bench.calls.take() == OF_A_PASS


def test_a_local_backward_only_accumulates(bench: Bench) -> None:
    bench.forward(synchronise=False).backward()
    assert bench.calls.take() == LOCAL


def test_without_visible_outputs_the_first_gradient_begins_a_pass(bench: Bench) -> None:
    bench.forward(seen=False).backward()
    assert bench.calls.take() == OF_A_PASS


def test_a_pass_uses_up_the_request_of_a_forward(bench: Bench) -> None:
    seen = bench.forward()
    hidden = bench.forward(seen=False)
    seen.backward()
    hidden.backward()
    assert bench.calls.take() == OF_A_PASS + LOCAL


def test_each_forward_decides_about_its_own_backward(bench: Bench) -> None:
    synchronised, local = bench.forward(), bench.forward(synchronise=False)
    local.backward()
    synchronised.backward()
    assert bench.calls.take() == LOCAL + OF_A_PASS


def test_autograd_grad_changes_nothing(bench: Bench) -> None:
    asked = bench.forward()
    hidden = bench.forward(seen=False)
    torch.autograd.grad(asked, bench.inputs, retain_graph=True)
    torch.autograd.grad(hidden, bench.inputs, retain_graph=True)
    assert not bench.calls.take()
    hidden.backward()
    assert bench.calls.take() == OF_A_PASS
    asked, local = bench.forward(), bench.forward(synchronise=False)
    torch.autograd.grad(asked, bench.inputs, retain_graph=True)
    local.backward()
    asked.backward()
    assert bench.calls.take() == LOCAL + OF_A_PASS


def test_with_the_policy_every_backward_is_a_pass(bench: Bench) -> None:
    bench.passes.synchronise_all()
    for _ in range(2):
        bench.net(bench.inputs).sum().backward()
        assert bench.calls.take() == OF_A_PASS
    bench.passes.ignore_all()
    bench.net(bench.inputs).sum().backward()
    assert bench.calls.take() == LOCAL


def test_a_framework_may_request_the_next_pass(bench: Bench) -> None:
    loss = bench.forward(synchronise=False)
    bench.passes.request([])
    loss.backward()
    bench.forward(synchronise=False).backward()
    assert bench.calls.take() == OF_A_PASS + LOCAL


def test_without_wait_free_sending_everything_is_sent_at_the_end() -> None:
    bench = Bench(wait_free=False)
    bench.forward().backward()
    assert bench.calls.take() == ["begin", "send_rest", "wait", "land", "end"]


def test_gradients_of_a_nested_backward_are_sent_at_the_end(bench: Bench) -> None:
    bench.passes.start_forward()
    outputs = checkpoint(bench.net, bench.inputs, use_reentrant=True)
    bench.passes.expect(outputs, synchronise=True)
    outputs.sum().backward()
    # The outer graph contains no weight's node: the pass begins with the first gradient, in the nested backward.
    assert bench.calls.take() == ["begin", "check 1", "check 0", "send_rest", "wait", "land", "end"]


def test_recomputation_in_the_followed_backward_is_recognised(bench: Bench) -> None:
    found: list[bool] = []

    def compute(inputs: torch.Tensor) -> torch.Tensor:
        found.append(bench.passes.computes_again)
        return bench.net(inputs)  # type: ignore[no-any-return]

    outputs = checkpoint(compute, bench.inputs, use_reentrant=False)
    bench.passes.expect(outputs, synchronise=True)
    outputs.sum().backward()
    assert found == [False, True]
    assert not bench.passes.computes_again


def test_two_models_in_one_backward_end_together() -> None:
    calls = Calls()
    first, second = Bench(calls=calls, name="a "), Bench(calls=calls, name="b ")
    (first.forward() + second.forward()).backward()
    taken = calls.take()
    end = taken.index("a end") if taken.index("a end") < taken.index("b end") else taken.index("b end")
    head, tail = taken[:end], taken[end:]
    # The pass that ends first sends and waits for both, because another rank may have begun them in another order.
    assert {"a send_rest", "b send_rest", "a wait", "b wait"} <= set(head)
    assert max(head.index("a send_rest"), head.index("b send_rest")) < min(head.index("a wait"), head.index("b wait"))
    assert sum(call.endswith("land") for call in head) == sum(call.endswith("land") for call in tail) == 1


def test_the_second_of_two_passes_over_the_same_weights_follows_at_the_end() -> None:
    calls = Calls()
    net = make_net()
    first, second = Bench(net, calls, "a "), Bench(net, calls, "b ")
    (first.forward() + second.forward()).backward()
    taken = calls.take()
    late, early = ("a ", "b ") if taken[0].startswith("b ") else ("b ", "a ")
    assert [call for call in taken if call.startswith(early)] == [early + call for call in OF_A_PASS]
    of_late = ["begin", "send_rest", "wait", "land", "end"]
    assert [call for call in taken if call.startswith(late)] == [late + call for call in of_late]
    assert taken.index(early + "land") < taken.index(late + "send_rest")


def test_a_late_pass_waits_in_spite_of_gates() -> None:
    calls = Calls()
    net = make_net()
    for bench in (benches := [Bench(net, calls, name) for name in ("a ", "b ")]):
        bench.passes.overlap_with(FakeOverlap(calls))  # type: ignore[arg-type]
    sum(bench.forward() for bench in benches).backward()
    taken = calls.take()
    assert taken.count("overlap ends") == 1
    assert [call[2:] for call in taken if call.endswith(("wait", "land"))] == ["wait", "land"]


def test_an_interrupted_backward_is_reported_at_the_next_forward(bench: Bench) -> None:
    loss = bench.forward()
    with pytest.raises(ArithmeticError):
        (Broken.apply(loss) * bench.forward()).backward()
    for _ in range(2):
        with pytest.raises(UndertowError, match="was interrupted by an exception"):
            bench.forward()


def interrupt_before_any_gradient(bench: Bench, *, then_local: bool = False) -> None:
    """Let a backward reach an output, and then raise an exception."""
    breaking = bench.net[1](Broken.apply(bench.inputs)).sum()  # made first, so it runs last
    loss = breaking + bench.forward()
    if then_local:
        bench.forward(synchronise=False)
    with pytest.raises(ArithmeticError):
        torch.autograd.grad(loss, bench.inputs)
    assert not bench.calls.take()


def test_a_backward_interrupted_before_any_gradient_is_forgotten_at_the_next_forward(bench: Bench) -> None:
    interrupt_before_any_gradient(bench)
    bench.forward().backward()
    assert bench.calls.take() == OF_A_PASS


def test_a_backward_interrupted_before_any_gradient_is_forgotten_at_the_next_backward(bench: Bench) -> None:
    seen, unseen = bench.forward(), bench.net(bench.inputs).sum()
    interrupt_before_any_gradient(bench)
    seen.backward()
    unseen.backward()
    assert bench.calls.take() == OF_A_PASS + LOCAL


def test_a_backward_interrupted_before_any_gradient_does_not_affect_local_ones(bench: Bench) -> None:
    interrupt_before_any_gradient(bench, then_local=True)
    bench.net(bench.inputs).sum().backward()
    assert bench.calls.take() == LOCAL


def test_a_forward_elsewhere_while_a_backward_is_followed(bench: Bench) -> None:
    """In another thread, where it does not belong to that backward."""
    known: list[bool] = []

    def run_elsewhere(gradient: torch.Tensor) -> None:
        def evaluate() -> None:
            known.append(bench.passes.computes_again)
            bench.forward(synchronise=False)

        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()

    loss = bench.forward()
    bench.hidden.register_hook(run_elsewhere)
    torch.autograd.grad(loss, bench.inputs, retain_graph=True)
    assert known == [False]
    assert not bench.calls.take()
    loss.backward()
    assert known == [False, False]
    assert bench.calls.take() == OF_A_PASS


def test_a_pass_whose_results_never_arrive_is_over(bench: Bench) -> None:
    bench.gradients.failure = UndertowError("a worker is gone")
    with pytest.raises(UndertowError, match="a worker is gone"):
        bench.forward().backward()
    bench.gradients.failure = None
    bench.calls.take()
    bench.forward().backward()
    assert bench.calls.take() == OF_A_PASS


def test_with_gates_a_pass_ends_before_its_results_arrive(bench: Bench) -> None:
    bench.passes.overlap_with(FakeOverlap(bench.calls))  # type: ignore[arg-type]
    bench.forward().backward()
    assert bench.calls.take() == [
        *("gates watch 2", "overlap begins", "expect", "begin", "send 1", "send 0"),
        *("send_rest", "wait for exposed", "overlap ends", "end"),
    ]


def test_a_join_waits_for_results_and_uses_the_first_layout() -> None:
    calls = Calls()
    bench = Bench(calls=calls, is_joining=lambda: True, planning=FakePlanning(calls))
    bench.passes.overlap_with(FakeOverlap(calls))  # type: ignore[arg-type]
    bench.forward().backward()
    assert [call for call in bench.calls.take() if call != "plan gets one"] == [
        *("gates watch 2", "overlap begins", "plan skips", "expect", "begin as at first", "send 1", "send 0"),
        *("send_rest", "wait", "land", "end"),
    ]


def test_planning_sees_each_pass_that_a_forward_announced() -> None:
    calls = Calls()
    bench = Bench(calls=calls, planning=FakePlanning(calls))
    bench.forward().backward()
    assert bench.calls.take() == [
        *("plan a forward", "plan begins, has_gates=False", "begin", "plan gets one", "send 1", "plan gets one"),
        *("send 0", "plan ends", "send_rest", "wait", "land", "end"),
    ]
    # Unforeseen: no forward has begun, but a framework requests a pass or every backward is one.
    for _ in range(2):
        bench.passes.request([])
        bench.net(bench.inputs).sum().backward()
        taken = bench.calls.take()
        assert "plan skips" in taken
        assert "plan ends" not in taken
        bench.passes.synchronise_all()


@pytest.mark.parametrize("gathered", [False, True])
def test_a_layer_learns_what_its_backward_wants(bench: Bench, gathered: bool) -> None:
    bench.gradients.gathered = gathered
    assert bench.asked_in(bench.forward()) is (Wanted.FACTORS if gathered else Wanted.GRADIENT)
    assert bench.asked_in(bench.forward(synchronise=False)) is (Wanted.BOTH if gathered else Wanted.GRADIENT)
    # The pass has begun with the gradient of the layer above.
    assert bench.asked_in(bench.forward(seen=False)) is (Wanted.FACTORS if gathered else Wanted.GRADIENT)


def test_a_layer_returns_its_gradient_if_none_is_accumulated(bench: Bench) -> None:
    bench.gradients.gathered = True
    assert bench.asked_in(bench.forward(), inputs=[bench.inputs]) is Wanted.GRADIENT


def test_a_layer_returns_its_gradient_before_the_pass_has_begun(bench: Bench) -> None:
    bench.gradients.gathered = True
    outputs = bench.net(bench.inputs)
    bench.passes.expect(None, synchronise=True)
    answers: list[Wanted] = []
    outputs.register_hook(lambda gradient: answers.append(bench.gradients.wants(1)))
    outputs.sum().backward()
    assert answers == [Wanted.GRADIENT]


@pytest.fixture
def claims() -> Iterator[None]:
    yield
    forget_all()


@pytest.mark.usefixtures("claims")
def test_the_claim_records_synchronised_parameters() -> None:
    net = make_net()
    bench = Bench(net, claim=claim(net, ()))
    bench.net(bench.inputs).sum().backward()
    assert not bench.passes.has_synchronised
    bench.forward().backward()
    assert bench.passes.has_synchronised


@pytest.mark.usefixtures("claims")
def test_a_gradient_sent_by_another_wrappers_pass_is_not_a_stray(caplog: pytest.LogCaptureFixture) -> None:
    net = make_net()
    bench, _ = Bench(net, claim=claim(net, ())), Bench(net, claim=claim(net, ()))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    bench.inputs.register_hook(lambda gradient: check(optimizer))  # like an optimizer that steps in backward
    bench.forward().backward()
    assert bench.calls.take() == OF_A_PASS
    assert not caplog.messages


def test_hooks_of_a_deleted_wrapper_do_nothing(bench: Bench) -> None:
    ref = weakref.ref(bench.passes)
    del bench.passes
    gc.collect()
    assert ref() is None
    bench.net(bench.inputs).sum().backward()
    assert not bench.calls.take()
    assert bench.gradients.wants(0) is Wanted.GRADIENT
