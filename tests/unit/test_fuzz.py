"""Damaged input for every decoder and the code behind it: a short run of `scripts/fuzz`, and what it found before."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import undertow
from tests.fuzz import files, live, mutation, peers, runner, wire
from tests.fuzz.target import Target

SEED, INPUTS = 1, 40
TARGETS = {target.name: target for module in (wire, peers, live, files) for target in module.make_targets()}


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Servers say what they refuse."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    for target in TARGETS.values():
        target.finish()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_damaged_input_raises_nothing_but_our_own_errors(target: Target) -> None:
    for number in range(max(4, INPUTS // target.cost)):
        error = target.find_failure(target.make_input(SEED, number))
        assert error is None, f'scripts/fuzz --replay "{target.name}" {SEED}:{number}: {error!r}'


@pytest.mark.parametrize(
    ("name", "data"), list(runner.read_seeds()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_was_found_before_stays_mended(name: str, data: bytes) -> None:
    assert TARGETS[name].find_failure(data) is None


def test_samples_are_read_without_an_error() -> None:
    """Else their damaged copies would never get further than the decoder."""
    for target in TARGETS.values():
        for sample in target.samples:
            if target.name != "carried error":  # which it raises again
                target.run(sample)


def test_the_same_seed_gives_the_same_input() -> None:
    samples = [b'{"name": "x", "number": 1}']
    one, other = (mutation.damage_json(random.Random(7), samples) for _ in range(2))
    assert one == other != samples[0]


def test_every_decoder_has_a_target() -> None:
    """Whoever adds one thinks of its damaged input, too."""
    source = Path(undertow.__file__).parent
    found = {
        str(path.relative_to(source)) for path in source.rglob("*.py") if re.search(r"\bDecoder\[", path.read_text())
    }
    assert found == COVERED


COVERED = {
    *("coordinator/agreement.py", "coordinator/meeting_point.py", "coordinator/messages.py"),
    *("coordinator/rendezvous.py", "crossover/messages.py", "doctor/cards.py", "doctor/door.py"),
    *("doctor/letters.py", "doctor/measuring.py", "doctor/torch_child.py", "faults/worker.py", "lab/bench/fleet.py"),
    *("lab/bench/worker.py", "lab/carried.py", "launch/host_line.py", "launch/job_file.py", "launch/nodes.py"),
    *("live/pulse.py", "plan/measured.py", "plan/plan.py", "report/points.py", "runtime/formation.py"),
    *("runtime/group.py", "script/plain.py", "sim/cluster_file.py", "timeline/events.py", "timeline/reading.py"),
    *("torch/data/sharing.py", "torch/data/weighing.py", "torch/planning.py", "trace/merging.py"),
}
