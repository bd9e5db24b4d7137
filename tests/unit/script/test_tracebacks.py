"""Tracebacks lose undertow's frames where these only forward a call."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from undertow.errors import ConfigError
from undertow.script import tracebacks
from undertow.script.checkpoints import Checkpoints
from undertow.script.folders import Folders
from undertow.script.tracebacks import strip_own_frames


def names_after_strip(work: Callable[[], Any]) -> list[str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        work()
    strip_own_frames(caught.value)
    return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][1:]


def refuse(*given: Any, **options: Any) -> None:
    raise ConfigError("not possible")


def fail(*given: Any) -> None:
    raise KeyError(given)


def test_a_forwarded_call_leaves_no_frame() -> None:
    assert names_after_strip(lambda: Checkpoints().remove(fail, "x")) == ["<lambda>", "fail"]
    assert names_after_strip(lambda: Folders().make(int, "no number")) == ["<lambda>"]  # written in C


def test_a_failure_in_undertows_own_code_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undertow.script.checkpoints.os.fspath", fail)
    monkeypatch.setattr(tracebacks, "_REPLACING", ("undertow.", __name__))  # now `fail` counts as undertow's
    assert names_after_strip(lambda: Checkpoints().has("x") or Checkpoints().find("x"))[-2:] == ["_find_path", "fail"]


def test_an_undertow_error_keeps_its_frames() -> None:
    assert names_after_strip(lambda: Checkpoints().remove(refuse, "x")) == ["<lambda>", "remove", "refuse"]


def test_causes_and_groups_are_stripped_too() -> None:
    def work() -> None:
        try:
            Checkpoints().remove(fail, "x")
        except KeyError as error:
            raise ExceptionGroup("one", [error]) from error

    with pytest.raises(ExceptionGroup) as caught:
        work()
    strip_own_frames(caught.value)
    assert caught.value.__cause__ is caught.value.exceptions[0]
    assert [frame.name for frame in traceback.extract_tb(caught.value.__cause__.__traceback__)] == ["work", "fail"]
