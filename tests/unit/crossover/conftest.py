"""Fixtures of crossover's tests: a place for the arbiter's socket, and short timeouts of its clients."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from undertow.crossover import client


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ut-") as folder:
        yield Path(folder) / "s"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make timeouts of seconds short."""
    monkeypatch.setattr(client, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(client, "ANSWER_S", 0.2)
    monkeypatch.setattr(client, "ASK_EVERY_S", 0.05)
