"""Threads, as Horovod's helper of this name starts them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start `target` in a thread and return the thread; with `silent`, its exceptions are dropped."""
    thread = threading.Thread(target=_silence(target) if silent else target, args=tuple(args), name=name, daemon=daemon)
    thread.start()
    return thread


def _silence(target: Callable[..., Any]) -> Callable[..., None]:
    def run(*args: Any) -> None:
        try:
            target(*args)
        except Exception:
            return

    return run
