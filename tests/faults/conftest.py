"""`pytest tests/faults --seed N` (or FAULT_SEED=N) runs one seed again; without it many run."""

from __future__ import annotations

import os

import pytest

SEEDS = 300


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", help="run only this seed of every fault test")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("--seed", default=None) or os.environ.get("FAULT_SEED")
        seeds = [int(wanted)] if wanted else range(getattr(metafunc.module, "SEEDS", SEEDS))
        metafunc.parametrize("seed", seeds)
