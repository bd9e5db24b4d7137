"""We hear of an import when it is done, and nobody else notices."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from undertow.script.import_hook import when_imported

NAME = "some_module_that_is_followed"


class Heard:
    def __init__(self) -> None:
        self.states: list[str] = []

    def __call__(self) -> None:
        self.states.append(sys.modules[NAME].state)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = finders
    sys.modules.pop(NAME, None)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def write(folder: Path, source: str) -> None:
    (folder / f"{NAME}.py").write_text(source)
    importlib.invalidate_caches()


def test_it_is_told_once_and_when_the_module_is_complete(folder: Path, heard: Heard) -> None:
    write(folder, "state = 'half'\nimport json\nstate = 'whole'")
    finders = list(sys.meta_path)
    when_imported(NAME, heard)
    assert heard.states == []
    importlib.import_module(NAME)
    assert heard.states == ["whole"]
    assert sys.meta_path == finders
    importlib.reload(sys.modules[NAME])
    assert heard.states == ["whole"]


def test_a_module_that_is_there_is_told_at_once(folder: Path, heard: Heard) -> None:
    write(folder, "state = 'whole'")
    importlib.import_module(NAME)
    when_imported(NAME, heard)
    assert heard.states == ["whole"]


def test_the_module_has_its_own_loader(folder: Path, heard: Heard) -> None:
    write(folder, "state = ''\nseen = __loader__, __spec__.loader")
    when_imported(NAME, heard)
    module = importlib.import_module(NAME)
    assert {type(loader) for loader in (*module.seen, module.__loader__)} == {SourceFileLoader}
    assert module.__loader__ is module.__spec__.loader is module.seen[0]
    assert set(vars(module.__loader__)) == {"name", "path"}


def test_to_ask_where_it_is_is_not_to_import_it(folder: Path, heard: Heard) -> None:
    write(folder, "state = 'whole'")
    when_imported(NAME, heard)
    assert importlib.util.find_spec(NAME) is not None
    assert heard.states == []
    importlib.import_module(NAME)
    assert heard.states == ["whole"]


def test_a_module_loaded_by_hand_is_heard_of_once(folder: Path, heard: Heard) -> None:
    write(folder, "state = 'whole'")
    when_imported(NAME, heard)
    specs = [importlib.util.find_spec(NAME) for _ in range(2)]
    for spec in specs:
        assert spec is not None
        assert spec.loader is not None
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    assert heard.states == ["whole"]


def test_an_import_that_fails_is_not_told_and_can_be_tried_again(folder: Path, heard: Heard) -> None:
    write(folder, "1 / 0")
    when_imported(NAME, heard)
    with pytest.raises(ZeroDivisionError) as caught:
        __import__(NAME)
    assert heard.states == []
    frames = traceback.extract_tb(caught.tb)
    assert [frame.filename for frame in frames] == [__file__, str(folder / f"{NAME}.py")]
    (folder / f"{NAME}.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    write(folder, "state = 'at last'")
    importlib.import_module(NAME)
    assert heard.states == ["at last"]


def test_other_modules_are_none_of_our_business(folder: Path, heard: Heard) -> None:
    write(folder, "state = 'whole'")
    (folder / "neighbour_of_it.py").write_text("")
    when_imported(NAME, heard)
    importlib.import_module("neighbour_of_it")
    del sys.modules["neighbour_of_it"]
    assert heard.states == []


def test_several_wait_for_modules_at_the_same_time(folder: Path, heard: Heard) -> None:
    write(folder, "state = 'whole'")
    when_imported("another_that_never_comes", heard)
    when_imported(NAME, heard)
    when_imported(NAME, heard)
    importlib.import_module(NAME)
    assert heard.states == ["whole", "whole"]
