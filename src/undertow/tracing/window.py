"""The window of steps that are recorded: `20`, `1000:1050` or `all`."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from undertow.bounds import STEP
from undertow.errors import ConfigError


class Window(NamedTuple):
    """The steps from `first` to `last`, both included."""

    first: int
    last: float

    def holds(self, step: int) -> bool:
        """Whether a step is in the window.  What precedes step 1 belongs to step 1."""
        return step <= self.last and (step >= self.first or self.first <= 1)

    def is_over(self, step: int) -> bool:
        return step > self.last

    def __str__(self) -> str:
        return f"{self.first} to {self.last:g}"


EVERYTHING = Window(1, math.inf)


def parse_window(text: str) -> Window:
    if text == "all":
        return EVERYTHING
    match = re.fullmatch(r"(?:(\d+):)?(\d+)", text)
    if match is None:
        raise ConfigError(f"trace steps {text!r}: give a number such as 20, a range such as 1000:1050, or all")
    first, last = (STEP.parse("trace steps", digits) for digits in (match[1] or "1", match[2]))
    if not 1 <= first <= last:
        raise ConfigError(f"trace steps {text!r}: the range is empty; give FIRST:LAST with 1 <= FIRST <= LAST")
    return Window(first, last)
