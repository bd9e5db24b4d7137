"""Whether a script has imported undertow, by what its modules and functions hold."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

import undertow as _undertow
import undertow.horovod
import undertow.kvstore
import undertow.torch
from undertow.script import own_imports
from undertow.torch.ddp import DistributedDataParallel

UNDERTOW = _undertow
del undertow, _undertow


def finds(**names: object) -> bool:
    """With these names in a module of the script's, and nothing else."""
    module = ModuleType("script")
    vars(module).update(names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_imports.sys, "modules", {**OURS, "script": module, "torch": torch})
        patch.setattr(own_imports.sys, "_getframe", lambda: None)
        return own_imports.imports_undertow()


OURS = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "undertow"}


@pytest.mark.parametrize(
    "thing",
    [
        UNDERTOW,
        UNDERTOW.torch,
        UNDERTOW.kvstore,
        UNDERTOW.init,
        UNDERTOW.PeerLost,
        UNDERTOW.torch.parallelize,
        UNDERTOW.kvstore.create,
    ],
    ids=str,
)
def test_these_are_signs(thing: object) -> None:
    assert finds(name=thing)


@pytest.mark.parametrize(
    "thing", [None, torch, UNDERTOW.horovod, UNDERTOW.__version__, DistributedDataParallel], ids=str
)
def test_these_are_none(thing: object) -> None:
    assert not finds(name=thing)


def test_a_name_in_a_function_that_runs_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_imports.sys, "modules", dict(OURS))
    monkeypatch.delitem(globals(), "UNDERTOW")

    def look() -> bool:
        return own_imports.imports_undertow()

    def train() -> bool:
        import undertow

        assert undertow
        return look()

    assert train()
