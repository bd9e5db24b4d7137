"""What the workers of `horovod.run` leave in the caller's folder."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from undertow.errors import ConfigError
from undertow.horovod.runner import exchange_folder
from undertow.horovod.runner.exchange_folder import ExchangeFolder


def test_objects_that_cannot_be_pickled_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = ExchangeFolder(tmp_path)
    with pytest.raises(ConfigError, match="the result of rank 3, a generator, cannot be pickled"):
        exchange.put_result(3, (n for n in range(3)))
    with pytest.raises(ConfigError, match="the function or its arguments cannot be pickled"):
        exchange.put_task(print, [(n for n in range(3))], {})
    monkeypatch.setattr(exchange_folder, "_pickler", lambda: pickle)
    with pytest.raises(ConfigError, match="Install cloudpickle"):
        exchange.put_task(lambda: 3, [], {})
    with pytest.raises(ConfigError, match="is defined in the script itself"):
        exchange.put_task(_of_the_script(), [], {})
    assert not list(tmp_path.iterdir())


def _of_the_script() -> Any:
    def func() -> None: ...

    func.__module__ = "__main__"
    return func


def test_a_task_is_read_as_it_was_written(tmp_path: Path) -> None:
    exchange = ExchangeFolder(tmp_path)
    exchange.put_task(divmod, (7,), {"b": 2})
    assert exchange.get_task() == (divmod, (7,), {"b": 2})
