"""Quantities as text: the only parser and formatter of rates, times, shares, sizes and counts.

In: "1gbit", "250 ms", "90%", "61.5M", or numbers in SI units.  Out: numbers, or text that is the same for a quantity in
every table, sentence and view.  A bandwidth without a unit is in Gbit/s, as networks are sold.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from undertow.bounds import BANDWIDTH, COMPUTE_S, PARAMETERS, Bounds
from undertow.errors import ConfigError

GIGA = 1e9
ABSENT = "–"  # shown for an unknown figure

_PREFIXES = (("G", GIGA), ("M", 1e6), ("k", 1e3))
_BITS = {"": 1.0, **{prefix.lower(): unit for prefix, unit in _PREFIXES}}
_COUNTS = {**_BITS, "b": 1e9}
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
# To most people a capital B means bytes, so GBps and GB/s are not accepted.
_BANDWIDTH = re.compile(rf"({_NUMBER})\s*((?i:[kmg]?)(?:(?i:bit)(?:/s|ps)?|bps))?")
_QUANTITY = re.compile(rf"({_NUMBER})\s*([^\W\d]*)")


def parse_bandwidth(text: str, option: str = "") -> float:
    """Parse a bandwidth in bits per second: "1gbit", "2.5 Gbit/s", "400mbps" or, in Gbit/s, "10"."""
    before = f"{option}: " if option else ""
    found = _BANDWIDTH.fullmatch(text.strip())
    if not found:
        raise ConfigError(f"{before}{text.strip()!r} is not a bandwidth: write it as 1gbit, 2.5gbit or 400mbit")
    rate = float(found[1]) * (_BITS.get(found[2][0].lower(), 1.0) if found[2] else GIGA)
    BANDWIDTH.check_range(f"{before}a bandwidth of {text.strip()!r}", rate)
    return rate


def parse_bandwidths(text: str, option: str = "") -> tuple[float, ...]:
    """Parse comma-separated bandwidths; the unit of the last one also applies to those without a unit."""
    parts = text.split(",")
    unit = _find_unit(parts[-1])
    return tuple(parse_bandwidth(part if _find_unit(part) else part + unit, option) for part in parts)


def _find_unit(text: str) -> str:
    return re.sub(rf"^\s*{_NUMBER}", "", text).strip()


def parse_count(text: str, option: str) -> float:
    """Parse a count: "61.5M" is 61.5e6, "1.2B" is 1.2e9."""
    count = _read(text, option, _COUNTS, "a number: write it as 61.5M, 143e6 or 1.2B")
    PARAMETERS.check_range(f"{option} {text.strip()}", count)
    return count


def parse_time(text: str, option: str, bounds: Bounds = COMPUTE_S) -> float:
    """Parse a time: "0.25s", "250ms" or, in seconds, "0.25"."""
    time_s = _read(text, option, _TIMES, "a time: write it as 0.25s or 250ms")
    bounds.check_range(f"{option} {text.strip()}", time_s)
    return time_s


def parse_share(text: str, option: str, bounds: Bounds) -> float:
    """Parse a share: "90%" or "0.9"."""
    number = text.strip().removesuffix("%")
    share = _read(number, option, {"": 1.0}, "a share: write it as 90% or 0.9", shown=text)
    if number != text.strip():
        share /= 100
    bounds.check_range(f"{option} {text.strip()}", share)
    return share


def _read(text: str, option: str, units: Mapping[str, float], kind: str, *, shown: str = "") -> float:
    found = _QUANTITY.fullmatch(text.strip())
    if not found or found[2].lower() not in units:
        raise ConfigError(f"{option} {(shown or text).strip()!r} is not {kind}")
    return float(found[1]) * units[found[2].lower()]


def parse_numbers(text: str, option: str, bounds: Bounds) -> tuple[float, ...]:
    """Parse comma-separated numbers."""
    return tuple(bounds.parse(option, part.strip()) for part in text.split(","))


def format_figure(value: float | None) -> str:
    """Format a measured figure for a column, with three digits: no measurement is more precise."""
    if value is None:
        return ABSENT
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{decimals}f}"


def format_short(value: float, digits: int = 3) -> str:
    """Format a value with at most this many digits, without trailing zeros and without an exponent if it is large."""
    return f"{value:.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def format_ms_figure(time_s: float) -> str:
    """Format a time for a column in milliseconds, without the unit."""
    return format_figure(time_s * 1e3)


def format_ms(time_s: float, digits: int = 3) -> str:
    """Format a time for a sentence: `12.3 ms`, or `12.3 s` if it is ten seconds or more."""
    if time_s >= 10:
        return f"{format_short(time_s, digits)} s"
    return f"{format_short(round(time_s * 1e3, 3), digits)} ms"


def format_ns(time_ns: float) -> str:
    """Format nanoseconds in milliseconds."""
    return format_ms(time_ns / 1e9)


def format_seconds(time_s: float) -> str:
    """Format a duration in its most natural unit: `5.67 s`, `3 min`, `2 days`."""
    if time_s < 120:
        return f"{format_short(time_s)} s"
    minutes, hours = time_s / 60, time_s / 3600
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"


def format_clock(time_s: float) -> str:
    """Format elapsed time like a clock: `2:03` or `1:02:03`."""
    minutes, rest_s = divmod(int(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest_s:02}" if hours else f"{minutes}:{rest_s:02}"


def format_speed(steps_per_s: float) -> str:
    """Format a rate of steps: `8.3 steps/s`, or `15 s/step` if it is slow."""
    if 0 < steps_per_s < 0.1:
        return f"{format_short(1 / steps_per_s, 2)} s/step"
    return f"{format_short(steps_per_s, 2)} steps/s"


def format_percent_figure(share: float, decimals: int = 0) -> str:
    """Format a share for a column in percent, without the unit."""
    return f"{100 * share:.{decimals}f}"


def format_percent(share: float, decimals: int = 0) -> str:
    """Format a share in percent: `9 %`."""
    return f"{format_percent_figure(share, decimals)} %"


def format_change(share: float, decimals: int = 1) -> str:
    """Format a difference as a share of the older or nominal value: `+7.1 %`, never `-0.0 %`."""
    return f"{round(100 * share, decimals) + 0.0:+.{decimals}f} %"


def format_share(part: float, whole: float = 1.0) -> str:
    """Format a share: `72 %`, but `under 1 %` for nearly nothing and `over 99 %` for nearly all."""
    share = part / whole if whole else 0.0
    if 0 < share <= 0.005:
        return "under 1 %"
    if 0.995 <= share < 1:
        return "over 99 %"
    return format_percent(share)


def format_bytes(size_bytes: float, digits: int = 3) -> str:
    """Format a size: `7.5 MB`."""
    return _scale(size_bytes, "B", digits)


def format_byte_rate(rate_bytes_per_s: float) -> str:
    """Format a rate of bytes for a live view: `93 MB/s`."""
    return f"{format_bytes(rate_bytes_per_s, 2)}/s"


def format_bandwidth(rate_bits_per_s: float) -> str:
    """Format a rate of bits: `1 Gbit/s`, `2.5 Mbit/s`."""
    return _scale(rate_bits_per_s, "bit/s", 3)


def _scale(value: float, unit: str, digits: int) -> str:
    for prefix, size in _PREFIXES:
        # A value that would round to 1000 of the smaller unit is shown as 1 of this unit.
        if value >= 0.9995 * size:
            return f"{format_short(value / size, digits)} {prefix}{unit}"
    return f"{format_short(value, digits)} {unit}"


def format_count(count: float) -> str:
    """Format a count: `61.5 M`.  Counts below ten billion are in millions, which are easier to compare."""
    for name, unit, least in ((" B", 1e9, 1e10), (" M", 1e6, 1e6), (" k", 1e3, 1e3)):
        if count >= least:
            return f"{count / unit:.5g}{name}"
    return f"{count:.5g}"


def format_quantity(count: float, noun: str) -> str:
    """Format a number with its noun: `1 rank`, `2 ranks`, `0.5 cores`."""
    return f"{count:g} {noun}{'' if count == 1 else 's'}"
