"""The launcher's variables that are hidden from a script."""

from __future__ import annotations

import os

import pytest

from undertow import hidden
from undertow.settings import read_settings


def test_hidden_variables_are_undertows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "GROUP_RANK": "0", "MASTER_PORT": "29500"}
    for name in hidden.RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    hidden.hide()
    try:
        assert not set(hidden.RANKS) & set(os.environ)
        os.environ["RANK"] = "0"  # as a script does that wants a group of one process
        settings = read_settings()
        assert (settings.rank, settings.world_size, settings.master_port) == (1, 2, 29500)
    finally:
        hidden.show()
    assert {name: os.environ[name] for name in given} == given
