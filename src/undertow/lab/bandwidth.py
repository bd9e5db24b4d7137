"""Bandwidths as people write them.

In: "1gbit", "400 Mbit/s", "1,2,4,5,10gbit".  Out: bits per second, and back again in words.
A bare number is Gbit/s, the unit in which networks are sold.
"""

from __future__ import annotations

import re

from undertow.bounds import BANDWIDTH
from undertow.errors import ConfigError

_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
# A capital B alone would be bytes to most people, so GBps and GB/s are not taken.
_BANDWIDTH = re.compile(rf"({_NUMBER})\s*((?i:[kmg]?)(?:(?i:bit)(?:/s|ps)?|bps))?")


def parse_bandwidth(text: str, option: str = "") -> float:
    """Bits per second of "1gbit", "2.5 Gbit/s", "400mbps" or, in Gbit/s, "10"."""
    before = f"{option}: " if option else ""
    found = _BANDWIDTH.fullmatch(text.strip())
    if not found:
        raise ConfigError(f"{before}{text.strip()!r} is not a bandwidth: write it as 1gbit, 2.5gbit or 400mbit")
    rate = float(found[1]) * (_UNITS.get(found[2][0].lower(), 1.0) if found[2] else 1e9)
    BANDWIDTH.check_range(f"{before}a bandwidth of {text.strip()!r}", rate)
    return rate


def parse_bandwidths(text: str, option: str = "") -> tuple[float, ...]:
    """Several, with commas between; the unit of the last one counts for all that have none."""
    parts = text.split(",")
    unit = _find_unit(parts[-1])
    return tuple(parse_bandwidth(part if _find_unit(part) else part + unit, option) for part in parts)


def format_bandwidth(rate_bits_per_s: float) -> str:
    """In words, such as "1 Gbit/s" or "2.5 Mbit/s"."""
    for name, unit in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        # What rounds to 1000 of the smaller unit is 1 of this one.
        if rate_bits_per_s >= 0.9995 * unit:
            return f"{_round(rate_bits_per_s / unit)} {name}"
    return f"{_round(rate_bits_per_s)} bit/s"


def _round(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _find_unit(text: str) -> str:
    return re.sub(rf"^\s*{_NUMBER}", "", text).strip()
