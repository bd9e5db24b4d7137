"""One more job is refused if its gradients and its optimizer cannot fit."""

from __future__ import annotations

from undertow.crossover.admission import find_obstacle

GIGA = 10**9


def test_the_first_job_is_its_own_judge() -> None:
    assert find_obstacle(10 * GIGA, 1 * GIGA) is None


def test_what_fits_is_admitted_to_the_byte() -> None:
    assert find_obstacle(4 * GIGA, 4 * GIGA, others_bytes=[0]) is None
    assert find_obstacle(4 * GIGA + 1, 4 * GIGA, others_bytes=[0]) is not None


def test_others_that_have_just_begun_take_theirs_first() -> None:
    assert find_obstacle(2 * GIGA, 4 * GIGA, others_bytes=[1 * GIGA, 1 * GIGA]) is None
    assert find_obstacle(2 * GIGA, 4 * GIGA, others_bytes=[1 * GIGA, 2 * GIGA]) == (
        "the device has not enough memory for one more job: its gradients and its optimizer need 2.0 GB, and 4.0 GB "
        "are free, of which the others are about to take 3.0. Start it when another job has ended, or without sharing"
    )


def test_without_such_others_nothing_is_said_of_them() -> None:
    assert "about to take" not in str(find_obstacle(5 * GIGA, 4 * GIGA, others_bytes=[0, 0]))
