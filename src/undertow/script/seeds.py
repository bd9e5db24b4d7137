"""Python's and numpy's random numbers, the same on all ranks from the start, as torch's are anyway.

In: a word that all ranks share.  Out: seeded generators, and a way to take that back from a script that knows of
ranks: it may want them to differ.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from undertow.script.imports import when_imported


class Seeds:
    def __init__(self, word: str) -> None:
        self._word = word
        self._undo: list[Callable[[], None]] = []

    def plant(self) -> None:
        before = random.getstate()
        random.seed(self._word)
        planted = random.getstate()
        self._undo.append(lambda: random.setstate(before) if random.getstate() == planted else None)
        when_imported("numpy", self._plant_in_numpy)

    def take_back(self) -> None:
        """Not from a script that has drawn, or given a seed of its own, meanwhile."""
        self._word = ""
        for undo in self._undo:
            undo()
        self._undo = []

    def _plant_in_numpy(self) -> None:
        numbers: Any = getattr(sys.modules["numpy"], "random", None)
        if not self._word or not hasattr(numbers, "get_state"):  # a module of the script's own by this name
            return
        before = numbers.get_state()
        numbers.seed(random.Random(self._word).getrandbits(32))
        planted = _describe(numbers.get_state())
        self._undo.append(lambda: numbers.set_state(before) if _describe(numbers.get_state()) == planted else None)


def _describe(state: Any) -> tuple[object, ...]:
    return tuple(part.tobytes() if hasattr(part, "tobytes") else part for part in state)
