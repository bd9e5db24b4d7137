"""A second framework trains through `undertow.sync` alone: exact, under plans that switch schemes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import undertow
from tests.support.numpy_frontend import NumpyTrainer, make_layers, train_alone
from tests.support.workers import run_workers
from undertow.engine.core.rounds import Array
from undertow.plan.plan import Choice, Plan
from undertow.plan.replanner import PASSES
from undertow.plan.scheme import Scheme
from undertow.runtime import process

WIDTHS = (40, 64, 48, 8)
WEIGHTS = ["layer 0.weight", "layer 1.weight", "layer 2.weight"]
BATCH, STEPS = 6, 3 * PASSES + 2
WORKERS = 3
# Measurements are reported in pass 4 and used for a plan in pass 5, which is in force in pass 6; a survey of
# the first passes ends before the report.
DENSE_STEPS = PASSES + 1


def make_plan(schemes: dict[str, Scheme]) -> Plan:
    weights = [(f"{layer.name}.weight", layer.weight.shape) for layer in make_layers(WIDTHS)]
    biases = [(f"{layer.name}.bias", layer.bias.shape) for layer in make_layers(WIDTHS)]
    choices = [
        Choice(
            tensor=name,
            shape=shape,
            scheme=schemes.get(name, Scheme.DENSE),
            bytes_out=1.0,
            push_bytes=1.0,
            alone_s=0.0,
            reason="given",
        )
        for name, shape in (*weights, *biases)
    ]
    return Plan(policy="given", workers=WORKERS, choices=tuple(choices), step_s=1.0, compute_s=1.0, alone={})


def make_batches() -> list[tuple[Array, Array]]:
    """Return the batches of one process, which the workers share."""
    random = np.random.default_rng(7)
    sizes = [(WORKERS * BATCH, width) for width in (WIDTHS[0], WIDTHS[-1])]
    batches = [[random.standard_normal(size).astype(np.float32) for size in sizes] for _ in range(STEPS)]
    return [(inputs, targets) for inputs, targets in batches]


def train(rank: int, policy: str | Plan) -> tuple[list[list[str]], bytes]:
    """Return the tensors sent as factors in each step, and the final bits of all weights."""
    trainer = NumpyTrainer(process.default_group(), make_layers(WIDTHS, seed=rank), policy)
    own = slice(rank * BATCH, (rank + 1) * BATCH)
    factored = []
    for inputs, targets in make_batches():
        trainer.step(inputs[own], targets[own])
        gradients = trainer.gradients
        indexes = [index for index in range(len(gradients)) if gradients.takes_factors(index, now=True)]
        factored.append(sorted(gradients.name(index) for index in indexes))
    trainer.flush()
    undertow.barrier()
    return factored, b"".join(layer.weight.tobytes() + layer.bias.tobytes() for layer in trainer.layers)


def train_everywhere(policy: str | Plan) -> list[list[str]]:
    """Train on all workers and compare the results; return the tensors sent as factors."""
    results: list[Any] = run_workers(WORKERS, train, policy)
    factored, weights = results[0]
    assert [one for one, _ in results] == [factored] * WORKERS
    assert [bits for _, bits in results] == [weights] * WORKERS, "replicas differ"
    alone = make_layers(WIDTHS)
    train_alone(alone, make_batches())
    expected = np.concatenate([np.concatenate([layer.weight.reshape(-1), layer.bias]) for layer in alone])
    np.testing.assert_allclose(np.frombuffer(weights, np.float32), expected, rtol=1e-4, atol=1e-5)
    return list(factored)


def test_dense_gradients_are_exact() -> None:
    assert train_everywhere("dense") == [[]] * STEPS


@pytest.mark.parametrize("policy", ["factors", "factors-to-shard"])
def test_a_measured_plan_switches_all_weights(policy: str) -> None:
    assert train_everywhere(policy) == [[]] * DENSE_STEPS + [WEIGHTS] * (STEPS - DENSE_STEPS)


def test_schemes_of_a_given_plan_work_side_by_side() -> None:
    given = make_plan({WEIGHTS[0]: Scheme.FACTORS_TO_SHARD, WEIGHTS[1]: Scheme.FACTORS})
    factored = train_everywhere(given)
    assert factored[0] == []
    assert factored[-1] == WEIGHTS[:2]
