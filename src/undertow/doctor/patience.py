"""Waits that Ctrl-C can interrupt, and several of them at once.

In: a function that blocks.  Out: its result.
It runs in a thread that is left behind when nobody waits for it any more; so it must have a deadline of its own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Errand(Generic[T]):
    """One of several calls that run side by side."""

    def __init__(self, number: int, work: Callable[[int], T]) -> None:
        self.number = number
        self._work = work
        self._result: T | None = None
        self._error: Exception | None = None

    def run(self, done: queue.SimpleQueue[Errand[T]]) -> None:
        try:
            self._result = self._work(self.number)
        except Exception as error:  # raised again by `result`, in the thread that asks
            self._error = error
        done.put(self)

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


def run_all(work: Callable[[int], T], numbers: Iterable[int]) -> Iterator[Errand[T]]:
    """Do it for all numbers at once; yields each as it ends."""
    done: queue.SimpleQueue[Errand[T]] = queue.SimpleQueue()
    errands = [Errand(number, work) for number in numbers]
    for errand in errands:
        threading.Thread(target=errand.run, args=[done], daemon=True).start()
    for _ in errands:
        yield done.get()


def run_one(work: Callable[[], T]) -> T:
    (errand,) = run_all(lambda number: work(), [0])
    return errand.result()
