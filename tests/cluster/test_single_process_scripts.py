"""Unchanged single-process scripts on several workers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.forked_scripts import read_curve, run_alone, run_script

TOLERANCE = 2e-5  # sums of floats in another order, over some dozens of steps


@pytest.fixture(scope="module")
def alone_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return the output of a script without undertow; each script runs once."""
    return functools.cache(lambda name: run_alone(tmp_path_factory.mktemp("alone"), name))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", ["plain_digits.py", "plain_names.py", "plain_stream.py"])
def test_a_split_batch_gives_the_curve_of_one_process(
    name: str, size: int, tmp_path: Path, alone_once: Callable[[str], str]
) -> None:
    alone = alone_once(name)
    texts = run_script(size, tmp_path, name, UNDERTOW_BATCH="split")
    assert len(read_curve(alone)) > 2
    assert read_curve(texts[0]) == pytest.approx(read_curve(alone), abs=TOLERANCE)
    assert texts[1:] == [""] * (size - 1)


def test_the_same_batch_on_each_worker_is_one_larger_batch(tmp_path: Path) -> None:
    alone = run_alone(tmp_path, "plain_digits.py", "--batch-size", "100")
    texts = run_script(2, tmp_path, "plain_digits.py", "--batch-size", "50")
    assert read_curve(texts[0]) == pytest.approx(read_curve(alone), abs=TOLERANCE)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_two_models_that_train_each_other(size: int, tmp_path: Path, alone_once: Callable[[str], str]) -> None:
    texts = run_script(size, tmp_path, "plain_gan.py")
    assert len(read_curve(texts[0], "radius")) == 6
    if size == 1:
        assert texts[0] == alone_once("plain_gan.py")


@pytest.mark.parametrize("name", ["plain_digits.py", "plain_gan.py"])
def test_overlap_gives_the_same(name: str, tmp_path: Path) -> None:
    assert run_script(2, tmp_path, name)[0] == run_script(2, tmp_path, name, UNDERTOW_OVERLAP="on")[0]


def test_plain_off_leaves_a_script_alone(tmp_path: Path, alone_once: Callable[[str], str]) -> None:
    alone = alone_once("plain_gan.py")
    assert run_script(2, tmp_path, "plain_gan.py", UNDERTOW_PLAIN="off") == [alone, alone]
