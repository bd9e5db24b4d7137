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
    """In a process of its own, as it were: with other numbers than the last one."""
    random.seed()
    np.random.seed()
    seeds = SharedSeed(word)
    seeds.apply()
    return seeds


def test_ranks_of_one_job_draw_the_same_and_those_of_another_do_not() -> None:
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


def test_not_from_a_script_that_has_drawn() -> None:
    seed("job")
    first, second = draw(), draw()
    seeds = seed("job")
    assert draw() == first
    seeds.undo()
    assert draw() == second


def test_not_from_a_script_with_a_seed_of_its_own() -> None:
    seeds = seed("job")
    random.seed(7)
    np.random.seed(7)
    expected = draw()
    random.seed(7)
    np.random.seed(7)
    seeds.undo()
    assert draw() == expected


def test_numpy_that_comes_later_is_left_alone_after_undo() -> None:
    seeds = seed("job")
    seeds.undo()
    np.random.seed(7)
    seeds._seed_numpy()
    after = np.random.random()
    np.random.seed(7)
    assert np.random.random() == after
