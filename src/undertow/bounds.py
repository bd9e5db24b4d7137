"""Ranges of all numbers that users, files and peers give, and the only code that checks them.

In: the name of a number, and its value or its text.  Out: the number, or `ConfigError` with the name, the value and
the range.  NaN is in no range, because every comparison with it is false.
"""

from __future__ import annotations

import math
import numbers
import re
from dataclasses import dataclass
from typing import Any

from undertow.errors import ConfigError

LONGEST_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Range of one kind of number, both ends included."""

    least: float
    most: float
    unit: str = ""
    is_whole: bool = True
    words: str = ""  # description of the range, if its numbers alone are not enough

    def check(self, name: str, value: Any) -> Any:
        """Return the value; raise `ConfigError` if it has another type or is out of range."""
        if not self._is_of_kind(value):
            raise ConfigError(f"{name} {_cut(repr(value))} is not {self._kind}: give {self.describe()}")
        self.check_range(f"{name} {show(value)}", value)
        return int(value) if self.is_whole else float(value)

    def check_range(self, subject: str, value: float) -> None:
        """Raise `ConfigError` if the number is out of range; `subject` has its name and value."""
        if not self.least <= value <= self.most:
            raise ConfigError(f"{subject} is not possible: give {self.describe()}")

    def parse(self, name: str, text: str, *, sign: str = " ") -> Any:
        """Parse the number of an option or, with "=" as the sign, of a variable."""
        subject = f"{name}{sign}{_cut(text if sign == ' ' and _is_plain(text) else repr(text))}"
        try:
            value = int(text) if self.is_whole else float(text)
        except ValueError:
            raise ConfigError(f"{subject} is not {self._kind}: give {self.describe()}") from None
        self.check_range(subject, value)
        return value

    def describe(self) -> str:
        """Return the range in words."""
        if self.words:
            return self.words
        unit = f" {self.unit}" if self.unit else ""
        return f"{show(self.least)} to {show(self.most)}{unit}"

    def _is_of_kind(self, value: Any) -> bool:
        """Whether this is a number, including those of numpy but neither True nor False."""
        return not isinstance(value, bool) and isinstance(value, numbers.Integral if self.is_whole else numbers.Real)

    @property
    def _kind(self) -> str:
        return "a whole number" if self.is_whole else "a number"


def read_count(text: str) -> int | None:
    """Parse an integer that another program has written; return None for other text and for too many digits."""
    return int(text) if re.fullmatch("[0-9]{1,15}", text) else None


def show(value: Any) -> str:
    """Format a number as a person would type it."""
    if isinstance(value, numbers.Integral):
        digits = int(value).bit_length() * math.log10(2)
        return str(value) if digits < LONGEST_SHOWN else f"of about {digits:.0f} digits"
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else f"{value:g}"


def _is_plain(text: str) -> bool:
    return bool(text) and text.isprintable() and " " not in text


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


# Timeouts.  The kernel takes milliseconds in 31 bits (TCP_USER_TIMEOUT, epoll), at most 24 days, and the sum of two of
# our timeouts must stay below that.  Below a millisecond TCP_USER_TIMEOUT would be 0, which means no timeout.
TIMEOUT_S = Bounds(least=0.001, most=1e6, unit="seconds", is_whole=False)
DOCTOR_WAIT_S = Bounds(least=0.001, most=86400, unit="seconds", is_whole=False)
PROBE_S = Bounds(least=0.001, most=60, unit="seconds", is_whole=False)
LEASE_S = Bounds(least=0.001, most=86400, unit="seconds", is_whole=False)
LAP_S = Bounds(least=0.001, most=86400, unit="seconds", is_whole=False)
SLICE_TIME_S = Bounds(least=1e-6, most=60, unit="seconds", is_whole=False)
COMPUTE_S = Bounds(least=1e-6, most=1e6, is_whole=False, words="1us to 1000000s, such as 0.25s")
DELAY_S = Bounds(least=0, most=10, is_whole=False, words="0 to 10 s")
LATENCY_S = Bounds(least=1e-6, most=10, is_whole=False, words="1us to 10s, such as 100us")

# Workers, hosts and ports.
MOST_WORKERS = 1 << 16
WORLD_SIZE = Bounds(least=1, most=MOST_WORKERS, unit="workers")
RANK = Bounds(least=0, most=MOST_WORKERS - 1)
WORKERS_PER_HOST = Bounds(least=1, most=4096, unit="workers")
NODES = Bounds(least=1, most=MOST_WORKERS, unit="hosts")
PEERS = Bounds(least=2, most=MOST_WORKERS, unit="hosts")  # a single host sends nothing
NODE_RANK = Bounds(least=0, most=MOST_WORKERS - 1)
PORT = Bounds(least=1, most=65535, words="a port, 1 to 65535")
ANY_PORT = Bounds(least=0, most=65535, words="a port, 1 to 65535, or 0 for any that is free")

# Bytes and rates.  A slice size above that of any model means no slicing.  UNDERTOW_SLICE=0 and UNDERTOW_CREDIT=0 leave
# the choice to undertow.
SLICE_BYTES = Bounds(least=1024, most=1 << 36, unit="bytes")
CHOSEN_SLICE_BYTES = Bounds(least=0, most=1 << 36, unit="bytes, 0 for what fits the link")
CREDIT_BYTES = Bounds(least=0, most=1 << 40, unit="bytes, 0 for some slices per peer")
NUMBER_BYTES = Bounds(least=1, most=16, unit="bytes: 4 for float32, 2 for half of it")
BANDWIDTH = Bounds(least=1e3, most=1e12, is_whole=False, words="1kbit to 1000gbit, such as 1gbit")
# In the simulator, streams share a link in turns of half a millisecond; on slower links a step would have millions.
SIMULATED = Bounds(least=1e7, most=1e12, is_whole=False, words="10mbit to 1000gbit, such as 1gbit")
RATE = Bounds(least=1, most=1e21, unit="per second", is_whole=False)
PARAMETERS = Bounds(least=1, most=1e15, is_whole=False, words="1 to 1e+15, such as 61.5M")

# Factors and shares.
WEIGHT = Bounds(least=1e-6, most=1e6, is_whole=False)
SCALE = Bounds(least=1e-3, most=1e6, is_whole=False)
SLOWDOWN = Bounds(least=1, most=1e6, is_whole=False)
PACE = Bounds(least=1e-3, most=1e3, is_whole=False, words="0.001 to 1000, where 1 is as fast as measured")
STRAGGLE = Bounds(least=1, most=1000, is_whole=False)
RATIO = Bounds(least=1e-6, most=1e6, is_whole=False)
JITTER = Bounds(least=0, most=0.99, is_whole=False, words="0 to 99%, such as 5%")
SHARE = Bounds(least=0, most=1, is_whole=False, words="0 to 100%, such as 2%")
GOAL = Bounds(least=1e-6, most=1, is_whole=False, words="more than 0 and at most 100%, such as 90%")

# Counts.
HOSTS = Bounds(least=1, most=1024, unit="hosts")
LAB_HOSTS = Bounds(least=1, most=250, unit="hosts")
BATCH = Bounds(least=1, most=1 << 24, unit="samples")
ROUNDS = Bounds(least=2, most=10_000, unit="rounds")
STEPS = Bounds(least=1, most=10_000, unit="steps")
STEP = Bounds(least=0, most=(1 << 53) - 1)
SEED = Bounds(least=-(1 << 63), most=(1 << 63) - 1)
SEEDS = Bounds(least=1, most=1_000_000_000, unit="seeds")
JOB = Bounds(least=0, most=1023, words="the number of a job, from 0")
