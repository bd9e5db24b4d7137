"""For all tests: nothing of an outer job leaks in."""

from __future__ import annotations

import os

import pytest

_OUTER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def no_outer_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test started inside a job, or on a machine set up for one, is not part of it."""
    for name in [name for name in os.environ if name in _OUTER or name.startswith("UNDERTOW_")]:
        monkeypatch.delenv(name)
