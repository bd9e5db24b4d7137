"""Functions that start threads, with the names of Horovod's module."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
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


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Call `fn` in threads, with each item of `args_list`; return the results by index.

    Raises RuntimeError if a call fails.  Without `block_until_all_done`, returns None at once.
    """
    results: dict[int, Any] = {}
    waiting = queue.SimpleQueue[tuple[int, Sequence[Any]]]()
    for item in enumerate(args_list):
        waiting.put(item)

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                number, args = waiting.get(block=False)
                results[number] = fn(*args)

    count = min(max_concurrent_executions, len(args_list))
    threads = [in_thread(work, daemon=not block_until_all_done) for _ in range(count)]
    if not block_until_all_done:
        return None
    for thread in threads:
        thread.join()
    if len(results) != len(args_list):
        name = getattr(fn, "__name__", repr(fn))
        raise RuntimeError(f"{len(args_list) - len(results)} of {len(args_list)} calls of {name} failed")
    return {number: results[number] for number in sorted(results)}


def _silence(target: Callable[..., Any]) -> Callable[..., None]:
    def run(*args: Any) -> None:
        with suppress(Exception):
            target(*args)

    return run
