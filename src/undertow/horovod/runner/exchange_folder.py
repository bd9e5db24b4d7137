"""The folder through which `horovod.run` and its workers exchange the function and its results.

In: objects.  Out: files in a folder that only this user can read, and that is removed at the end of the run.
The files are pickles, written by the caller and by workers that it has started: reading them trusts only the user's own
function.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undertow.errors import ConfigError, PeerLost


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The exception of one worker, as text."""

    rank: int
    text: str
    trace: str
    follows: bool  # it is only a consequence of the loss of another worker
    at_s: float  # by this host's clock


class ExchangeFolder:
    """A folder with one task, and the result or failure of each rank."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def put_task(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Write the call.  `sys.path` is written first: unpickling may import the caller's modules."""
        content = _dump_call((func, tuple(args), dict(kwargs)))
        self._write("path", pickle.dumps(list(sys.path)))
        self._write("task", content)

    def get_task(self) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
        path: list[str] = self._read("path")
        sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
        task: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]] = self._read("task")
        return task

    def note_start(self, rank: int) -> None:
        self._write(f"start-{rank}", b"")

    def put_result(self, rank: int, value: Any) -> None:
        try:
            content = _pickler().dumps(value)
        except Exception as error:
            kind = type(value).__name__
            raise ConfigError(f"the result of rank {rank}, a {kind}, cannot be pickled: {error}") from error
        self._write(f"result-{rank}", content)

    def put_failure(self, rank: int, error: BaseException) -> None:
        failure = Failure(
            rank=rank,
            text="".join(traceback.format_exception_only(error)).strip(),
            trace="".join(traceback.format_exception(error)),
            follows=isinstance(error, PeerLost),
            at_s=time.monotonic(),
        )
        self._write(f"failure-{rank}", pickle.dumps(failure))

    def has_started(self) -> bool:
        return any(self._folder.glob("start-*"))

    def has_result(self, rank: int) -> bool:
        return (self._folder / f"result-{rank}").exists()

    def get_result(self, rank: int) -> Any:
        return self._read(f"result-{rank}")

    def find_failure(self, size: int) -> Failure | None:
        """Return the first failure; failures that only follow from a lost worker come last."""
        names = [f"failure-{rank}" for rank in range(size) if (self._folder / f"failure-{rank}").exists()]
        failures: list[Failure] = [self._read(name) for name in names]
        return min(failures, key=lambda failure: (failure.follows, failure.at_s), default=None)

    def _write(self, name: str, content: bytes) -> None:
        """Write a file atomically: the worker may be killed while it writes."""
        draft = self._folder / f"{name}.part"
        draft.write_bytes(content)
        os.replace(draft, self._folder / name)

    def _read(self, name: str) -> Any:
        return pickle.loads((self._folder / name).read_bytes())  # noqa: S301  # see the docstring of this module


def _pickler() -> Any:
    return importlib.import_module("cloudpickle") if importlib.util.find_spec("cloudpickle") else pickle


def _dump_call(call: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]) -> bytes:
    func, pickler = call[0], _pickler()
    if pickler is pickle and getattr(func, "__module__", None) == "__main__":
        raise ConfigError(
            f"horovod.run: {func!r} is defined in the script itself, from which workers cannot import it: install "
            "cloudpickle, or move the function to a module"
        )
    try:
        content: bytes = pickler.dumps(call)
    except Exception as error:
        advice = "" if pickler is not pickle else ". Install cloudpickle: it can pickle lambdas and local functions"
        raise ConfigError(f"horovod.run: the function or its arguments cannot be pickled: {error}{advice}") from error
    return content
