"""Counts and times as people write them.

In: "61.5M", "143e6", "1.2B"; "0.25s", "250 ms".  Out: a number, or seconds; and counts back again in words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from undertow.bounds import COMPUTE_S, PARAMETERS, Bounds
from undertow.errors import ConfigError

_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\W\d]*)")


def parse_count(text: str, option: str) -> float:
    """How many: "61.5M" is 61.5e6, "1.2B" is 1.2e9."""
    count = _read(text, option, _COUNTS, "a number: write it as 61.5M, 143e6 or 1.2B")
    PARAMETERS.check_range(f"{option} {text.strip()}", count)
    return count


def parse_time(text: str, option: str, bounds: Bounds = COMPUTE_S) -> float:
    """Seconds of "0.25s", "250ms" or, in seconds, "0.25"."""
    time_s = _read(text, option, _TIMES, "a time: write it as 0.25s or 250ms")
    bounds.check_range(f"{option} {text.strip()}", time_s)
    return time_s


def format_count(count: float) -> str:
    """In words, such as "61.5 M"; of large ones millions are easier to compare, so billions begin at ten."""
    for name, unit, least in ((" B", 1e9, 1e10), (" M", 1e6, 1e6), (" k", 1e3, 1e3)):
        if count >= least:
            return f"{count / unit:.5g}{name}"
    return f"{count:.5g}"


def _read(text: str, option: str, units: Mapping[str, float], kind: str) -> float:
    found = _QUANTITY.fullmatch(text.strip())
    if not found or found[2].lower() not in units:
        raise ConfigError(f"{option} {text.strip()!r} is not {kind}")
    return float(found[1]) * units[found[2].lower()]


def parse_share(text: str, option: str, bounds: Bounds) -> float:
    """A part of one: "90%" and "0.9" are the same."""
    found = _QUANTITY.fullmatch(text.strip().removesuffix("%"))
    if not found or found[2]:
        raise ConfigError(f"{option} {text.strip()!r} is not a share: write it as 90% or 0.9")
    share = float(found[1]) / (100 if text.strip().endswith("%") else 1)
    bounds.check_range(f"{option} {text.strip()}", share)
    return share


def parse_numbers(text: str, option: str, bounds: Bounds) -> tuple[float, ...]:
    """Several, with commas between them."""
    return tuple(bounds.parse(option, part.strip()) for part in text.split(","))
