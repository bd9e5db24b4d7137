"""Any sequence of forward and backward passes: which of them are synchronised, by two rules."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pass_bench import LOCAL, OF_A_PASS, Bench

STEPS = st.one_of(
    st.tuples(st.just("forward"), st.booleans(), st.booleans()),
    st.tuples(st.just("policy"), st.booleans(), st.just(False)),
    st.tuples(st.sampled_from(["backward", "grad"]), st.integers(0, 3), st.just(False)),
)


@given(st.lists(STEPS, min_size=12, max_size=24))
@settings(max_examples=100, deadline=None)
def test_a_backward_is_a_pass_if_it_reaches_an_output_or_the_last_forward_requested_one(
    steps: list[tuple[str, int, bool]],
) -> None:
    bench = Bench()
    losses: list[tuple[torch.Tensor, bool]] = []  # with whether its outputs carry a hook
    policy = is_armed = False
    for step, choice, seen in steps:
        if step == "forward":
            losses.append((bench.forward(synchronise=bool(choice), seen=seen), bool(choice) and seen))
            is_armed = bool(choice)
        elif step == "policy":
            (bench.passes.synchronise_all if choice else bench.passes.ignore_all)()
            policy = is_armed = bool(choice)
        elif losses and step == "grad":
            torch.autograd.grad(losses[choice % len(losses)][0], bench.inputs, retain_graph=True)
            assert not bench.calls.take()
        elif losses:
            loss, is_hooked = losses[choice % len(losses)]
            loss.backward(retain_graph=True)
            if is_hooked or is_armed:
                assert bench.calls.take() == OF_A_PASS
                is_armed = policy
            else:
                assert bench.calls.take() == LOCAL
