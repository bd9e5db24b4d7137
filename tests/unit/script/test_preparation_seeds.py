"""Random numbers are the same on all ranks, unless a script knows of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from undertow.script.preparation import SharedSeed


@pytest.fixture(autouse=True)
def numbers_as_before() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)


def draw() -> tuple[float, float]:
    return random.random(), np.random.random()


def seed(word: str) -> SharedSeed:
    """Apply a shared seed to generators in a new state, as in a new process."""
    random.seed()
    np.random.seed()
    seeds = SharedSeed(word)
    seeds.apply()
    return seeds


def test_ranks_of_one_job_draw_the_same_numbers_and_other_jobs_do_not() -> None:
    seed("job")
    first = draw()
    seed("job")
    assert draw() == first
    seed("another")
    assert not set(draw()) & set(first)


def test_a_seed_can_be_undone() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = draw()
    random.seed(5)
    np.random.seed(5)
    seeds = SharedSeed("job")
    seeds.apply()
    seeds.undo()
    assert draw() == expected


def test_generators_that_a_script_has_drawn_from_are_not_restored() -> None:
    seed("job")
    first, second = draw(), draw()
    seeds = seed("job")
    assert draw() == first
    seeds.undo()
    assert draw() == second


def test_generators_that_a_script_has_seeded_are_not_restored() -> None:
    seeds = seed("job")
    random.seed(7)
    np.random.seed(7)
    expected = draw()
    random.seed(7)
    np.random.seed(7)
    seeds.undo()
    assert draw() == expected


def test_a_numpy_that_is_imported_after_undo_is_left_alone() -> None:
    seeds = seed("job")
    seeds.undo()
    np.random.seed(7)
    seeds._seed_numpy()
    after = np.random.random()
    np.random.seed(7)
    assert np.random.random() == after
