"""A function is called when an import is complete, and the import is otherwise unchanged."""

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


class Recorder:
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
def recorder() -> Recorder:
    return Recorder()


def write(folder: Path, source: str) -> None:
    (folder / f"{NAME}.py").write_text(source)
    importlib.invalidate_caches()


def test_the_function_is_called_once_when_the_module_is_complete(folder: Path, recorder: Recorder) -> None:
    write(folder, "state = 'half'\nimport json\nstate = 'whole'")
    finders = list(sys.meta_path)
    when_imported(NAME, recorder)
    assert recorder.states == []
    importlib.import_module(NAME)
    assert recorder.states == ["whole"]
    assert sys.meta_path == finders
    importlib.reload(sys.modules[NAME])
    assert recorder.states == ["whole"]


def test_the_function_is_called_at_once_for_an_imported_module(folder: Path, recorder: Recorder) -> None:
    write(folder, "state = 'whole'")
    importlib.import_module(NAME)
    when_imported(NAME, recorder)
    assert recorder.states == ["whole"]


def test_the_module_has_its_own_loader(folder: Path, recorder: Recorder) -> None:
    write(folder, "state = ''\nseen = __loader__, __spec__.loader")
    when_imported(NAME, recorder)
    module = importlib.import_module(NAME)
    assert {type(loader) for loader in (*module.seen, module.__loader__)} == {SourceFileLoader}
    assert module.__loader__ is module.__spec__.loader is module.seen[0]
    assert set(vars(module.__loader__)) == {"name", "path"}


def test_find_spec_does_not_count_as_an_import(folder: Path, recorder: Recorder) -> None:
    write(folder, "state = 'whole'")
    when_imported(NAME, recorder)
    assert importlib.util.find_spec(NAME) is not None
    assert recorder.states == []
    importlib.import_module(NAME)
    assert recorder.states == ["whole"]


def test_a_module_that_is_loaded_by_hand_is_reported_once(folder: Path, recorder: Recorder) -> None:
    write(folder, "state = 'whole'")
    when_imported(NAME, recorder)
    specs = [importlib.util.find_spec(NAME) for _ in range(2)]
    for spec in specs:
        assert spec is not None
        assert spec.loader is not None
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    assert recorder.states == ["whole"]


def test_a_failed_import_is_not_reported_and_can_be_repeated(folder: Path, recorder: Recorder) -> None:
    write(folder, "1 / 0")
    when_imported(NAME, recorder)
    with pytest.raises(ZeroDivisionError) as caught:
        __import__(NAME)
    assert recorder.states == []
    frames = traceback.extract_tb(caught.tb)
    assert [frame.filename for frame in frames] == [__file__, str(folder / f"{NAME}.py")]
    (folder / f"{NAME}.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    write(folder, "state = 'at last'")
    importlib.import_module(NAME)
    assert recorder.states == ["at last"]


def test_other_modules_are_not_reported(folder: Path, recorder: Recorder) -> None:
    write(folder, "state = 'whole'")
    (folder / "neighbour_of_it.py").write_text("")
    when_imported(NAME, recorder)
    importlib.import_module("neighbour_of_it")
    del sys.modules["neighbour_of_it"]
    assert recorder.states == []


def test_several_functions_can_wait_for_modules(folder: Path, recorder: Recorder) -> None:
    write(folder, "state = 'whole'")
    when_imported("another_that_never_comes", recorder)
    when_imported(NAME, recorder)
    when_imported(NAME, recorder)
    importlib.import_module(NAME)
    assert recorder.states == ["whole", "whole"]
