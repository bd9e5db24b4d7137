"""Overlap and waiting in a frontend with a table of gradients: results arrive when the test says so."""

from __future__ import annotations

import numpy as np

from tests.support.numpy_frontend import NumpyTrainer, make_layers
from tests.support.slow_group import MEAN, SlowGroup

WIDTHS = (3, 4, 4, 2)
INPUTS, TARGETS = np.ones((2, 3), np.float32), np.zeros((2, 2), np.float32)


def make_trainer() -> tuple[NumpyTrainer, SlowGroup]:
    group = SlowGroup()
    trainer = NumpyTrainer(group, make_layers(WIDTHS), "dense")
    group.deliver_all()  # the first weights
    return trainer, group


def list_weights(group: SlowGroup) -> list[tuple[str, int]]:
    """Return the weights in flight in the order in which they were sent, with their priorities."""
    slices = [(group.slices[one.key], one.priority) for one in group.pending]
    names = [f"layer {len(WIDTHS) - 2 - item.ranges[0].tensor // 2}" for item, _ in slices]
    found = zip(names, slices, strict=True)
    return [(name, priority) for name, (item, priority) in found if not item.ranges[0].tensor % 2]


def test_a_step_does_not_wait_and_the_last_layer_is_sent_first() -> None:
    trainer, group = make_trainer()
    trainer.step(INPUTS, TARGETS)
    assert not group.waits
    assert list(dict.fromkeys(name for name, _ in list_weights(group))) == ["layer 2", "layer 1", "layer 0"]


def test_the_layer_used_first_is_most_urgent() -> None:
    trainer, group = make_trainer()
    trainer.step(INPUTS, TARGETS)
    by_layer = dict(list_weights(group))
    assert by_layer["layer 0"] < by_layer["layer 1"] < by_layer["layer 2"]


def test_a_pass_is_more_urgent_than_the_next_one() -> None:
    trainer, group = make_trainer()
    trainer.step(INPUTS, TARGETS)
    first = [one.priority for one in group.pending]
    trainer.step(INPUTS, TARGETS)
    assert max(first) < min(one.priority for one in group.pending)


def test_each_layer_waits_for_its_own_gradients_only() -> None:
    trainer, group = make_trainer()
    trainer.step(INPUTS, TARGETS)
    in_flight: list[list[str]] = []
    trainer.on_use = lambda layer: in_flight.append([name for name, _ in list_weights(group)])
    trainer.step(INPUTS, TARGETS)
    assert [sorted(set(names)) for names in in_flight] == [["layer 1", "layer 2"], ["layer 2"], []]


def test_every_update_is_made_with_the_mean() -> None:
    trainer, _ = make_trainer()
    before = [layer.weight.copy() for layer in trainer.layers]
    trainer.step(INPUTS, TARGETS)
    own = [np.array(layer.gradients["weight"]) for layer in trainer.layers]
    trainer.flush()
    for layer, weight, gradient in zip(trainer.layers, before, own, strict=True):
        np.testing.assert_allclose(layer.weight, weight - np.float32(0.1 * MEAN) * gradient, rtol=1e-6)
