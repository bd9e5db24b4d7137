"""A table of gradients: each leaves once, waits for its own result, and lands in its slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.numpy_frontend import Linear, NumpyGradients, NumpySlot, make_layers
from tests.support.slow_group import MEAN, SlowGroup
from undertow.engine.core.slicing import Chunking
from undertow.errors import UndertowError
from undertow.sync.completion import Arrivals
from undertow.sync.gradient_table import GradientTable

WIDTHS = (20, 20, 20)  # each weight is larger than a slice; biases are fused
TOP_WEIGHT, TOP_BIAS, WEIGHT, BIAS = range(4)  # the last layer's first


class Bench:
    """Two layers with gradients, and their table."""

    def __init__(self, kind: type[GradientTable] | None = None) -> None:
        self.group = SlowGroup(256)
        self.layers = make_layers(WIDTHS)
        self.table: NumpyGradients = (kind or NumpyGradients)(self.group, self.layers)  # type: ignore[arg-type,call-arg]
        self.slots: Sequence[NumpySlot] = self.table.slots
        self.compute()

    def compute(self) -> None:
        """As a backward does it; nothing is sent."""
        for layer in self.layers:
            layer.forward(np.ones((2, 20), np.float32))
            layer.backward(np.full((2, 20), 0.5, np.float32))

    def pass_through(self, **options: Any) -> bool:
        """One whole pass; return whether a worker was absent."""
        self.compute()
        self.table.begin(**options)
        self.table.send_rest()
        self.table.wait()
        return self.table.land()

    def prefer_factors(self, *indexes: int) -> None:
        """Let these leave as factors from the next pass on."""
        factored = {index: self.slots[index] for index in indexes}
        for slot in factored.values():
            slot.attach()
        self.table.table.recut(256, dict.fromkeys(factored, Chunking(1)))
        self.table.change_layout(factored)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_every_slot_holds_the_mean_after_a_pass(bench: Bench) -> None:
    own = [np.array(slot.gradient) for slot in bench.slots]
    assert not bench.pass_through()
    for slot, gradient in zip(bench.slots, own, strict=True):
        np.testing.assert_allclose(slot.gradient, MEAN * gradient)


def test_gradients_leave_when_sent_and_the_rest_at_the_end_of_backward(bench: Bench) -> None:
    bench.table.begin()
    bench.table.send(WEIGHT)
    sent = {one.key for one in bench.group.pending}
    assert sent == {item.spec.key for item in bench.table.table.first.own_slices[WEIGHT]}
    bench.table.send_rest()
    assert len(bench.group.pending) == len(bench.group.slices)


def test_the_urgency_of_a_slice_is_that_of_its_tensor(bench: Bench) -> None:
    bench.table.priorities = [4, 3, 2, 1]
    bench.table.begin()
    bench.table.send(TOP_WEIGHT)
    assert {one.priority for one in bench.group.pending} == {4}


def test_a_gradient_that_becomes_ready_twice_is_refused_with_its_name_and_advice() -> None:
    class Advising(NumpyGradients):
        REMEDY = "Use it once."

    bench = Bench(Advising)
    bench.table.begin()
    bench.table.send(TOP_BIAS)
    with pytest.raises(UndertowError, match=r"'layer 1.bias' became ready twice .* it was sent\. Use it once\.$"):
        bench.table.send(TOP_BIAS)
    bench.table.begin()
    bench.table.check_unsent(TOP_BIAS)  # in the next pass it may


def test_a_gradient_of_the_wrong_shape_is_refused_before_anything_of_it_leaves(bench: Bench) -> None:
    bench.layers[0].gradients["weight"] = np.zeros((2, 2), np.float32)
    bench.table.begin()
    with pytest.raises(AssertionError):
        bench.table.send(WEIGHT)
    assert bench.group.pending == []
    bench.table.check_unsent(WEIGHT)


def test_a_tensor_without_a_gradient_contributes_nothing_and_gets_none(bench: Bench) -> None:
    bench.compute()
    bench.layers[0].gradients["weight"] = None
    bench.table.begin()
    bench.table.send_rest()
    keys = {item.spec.key for item in bench.table.table.first.own_slices[WEIGHT]}
    assert {one.present for one in bench.group.pending if one.key in keys} == {0}
    bench.table.wait()
    bench.table.land()
    assert bench.slots[WEIGHT].gradient is None


def test_one_result_can_be_waited_for_while_others_are_under_way(bench: Bench) -> None:
    bench.table.begin()
    bench.table.send_rest()
    bench.table.wait_for(TOP_WEIGHT)
    assert bench.table.is_here(TOP_WEIGHT)
    assert not bench.table.is_here(WEIGHT)
    own = np.array(bench.slots[WEIGHT].gradient)
    bench.table.land_one(TOP_WEIGHT)
    np.testing.assert_array_equal(bench.slots[WEIGHT].gradient, own)


def test_gradients_in_one_slice_arrive_together() -> None:
    table = NumpyGradients(SlowGroup(1024), make_layers((2, 2, 2)))
    assert any(item.is_fused for item in table.table.first.slices)
    table.begin()
    table.send_rest()
    table.wait_for(BIAS)
    assert table.is_here(TOP_BIAS)


def test_completions_are_appended_to_the_given_arrivals(bench: Bench) -> None:
    told: Arrivals = deque()
    bench.table.begin(told)
    bench.table.send_rest()
    bench.table.wait()
    members = sorted(index for completion in told for index in completion.members)
    assert members == [0, 1, 2, 3]


def test_a_worker_that_took_no_part_is_reported(bench: Bench) -> None:
    bench.table.begin()
    bench.table.send_rest()
    bench.group.pending[-1].absent = True
    bench.table.wait()
    assert bench.table.land()
    assert not bench.pass_through()


def test_an_empty_tensor_needs_no_round() -> None:
    group, layer = SlowGroup(256), Linear("layer", np.zeros((0, 4), np.float32))
    slot = NumpySlot(layer, "weight")
    table = GradientTable(group, "nothing", [slot], [slot.spec])
    table.begin()
    table.send_rest()
    assert table.is_here(0)
    assert not table.land()
    assert group.pending == []


def test_a_layout_is_used_from_the_next_pass_on(bench: Bench) -> None:
    bench.table.begin()
    bench.prefer_factors(WEIGHT)
    assert bench.table.takes_factors(WEIGHT, now=False)
    assert not bench.table.takes_factors(WEIGHT, now=True)
    bench.table.send_rest()
    bench.table.wait()
    bench.table.land()
    bench.table.begin()
    assert bench.table.takes_factors(WEIGHT, now=True)
    assert not bench.table.takes_factors(TOP_WEIGHT, now=True)


def test_a_pass_as_at_first_uses_the_first_layout(bench: Bench) -> None:
    bench.prefer_factors(WEIGHT)
    bench.slots[WEIGHT].detach()
    first = {item.spec.key for item in bench.table.table.first.slices}
    bench.group.answered.clear()
    own = np.array(bench.slots[WEIGHT].gradient)
    bench.pass_through(as_at_first=True)
    assert set(bench.group.answered) == first
    np.testing.assert_allclose(bench.slots[WEIGHT].gradient, MEAN * own)


def test_gradients_that_did_not_come_through_their_layer_are_named(bench: Bench) -> None:
    bench.prefer_factors(WEIGHT, TOP_WEIGHT)
    for _ in range(3):
        bench.pass_through()
    assert bench.table.find_wholes() == []
    bench.slots[WEIGHT].detach()  # its layer computes the gradient itself
    for _ in range(3):
        bench.pass_through()
    assert bench.table.find_wholes() == ["layer 0.weight"]


def test_only_gradients_computed_by_this_rank_are_sampled_and_only_on_request(bench: Bench) -> None:
    bench.prefer_factors(WEIGHT)
    bench.pass_through()
    assert bench.table.find_digests() == {}
    bench.table.sample_results()
    bench.pass_through()
    assert list(bench.table.find_digests()) == ["layer 0.weight"]


def test_without_choices_of_a_frontend_all_gradients_are_dense() -> None:
    slot = NumpySlot(make_layers((4, 4))[0], "weight")
    table = GradientTable(SlowGroup(), "dense", [slot], [slot.spec])
    assert table.find_factor_slot(0) is None
    assert not table.can_allreduce(0)
    assert table.allreduce_bytes_per_s is None
    with pytest.raises(NotImplementedError):
        table.make_allreduce_syncers([0])
