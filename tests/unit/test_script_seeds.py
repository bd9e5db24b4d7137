"""Random numbers are the same on all ranks, unless a script knows of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from undertow.script.seeds import Seeds


@pytest.fixture(autouse=True)
def numbers_as_before() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)


def draw() -> tuple[float, float]:
    return random.random(), np.random.random()


def plant(word: str) -> Seeds:
    """In a process of its own, as it were: with other numbers than the last one."""
    random.seed()
    np.random.seed()
    seeds = Seeds(word)
    seeds.plant()
    return seeds


def test_ranks_of_one_job_draw_the_same_and_those_of_another_do_not() -> None:
    plant("job")
    first = draw()
    plant("job")
    assert draw() == first
    plant("another")
    assert not set(draw()) & set(first)


def test_what_was_planted_can_be_taken_back() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = draw()
    random.seed(5)
    np.random.seed(5)
    seeds = Seeds("job")
    seeds.plant()
    seeds.take_back()
    assert draw() == expected


def test_not_from_a_script_that_has_drawn() -> None:
    plant("job")
    first, second = draw(), draw()
    seeds = plant("job")
    assert draw() == first
    seeds.take_back()
    assert draw() == second


def test_not_from_a_script_with_a_seed_of_its_own() -> None:
    seeds = plant("job")
    random.seed(7)
    np.random.seed(7)
    expected = draw()
    random.seed(7)
    np.random.seed(7)
    seeds.take_back()
    assert draw() == expected


def test_numpy_that_comes_later_is_left_alone_once_it_is_taken_back() -> None:
    seeds = plant("job")
    seeds.take_back()
    np.random.seed(7)
    seeds._plant_in_numpy()
    after = np.random.random()
    np.random.seed(7)
    assert np.random.random() == after
