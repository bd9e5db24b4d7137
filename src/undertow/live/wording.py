"""How figures look, the same in every view.

In: numbers.  Out: short text.
"""

from __future__ import annotations


def format_rate(bytes_per_s: float) -> str:
    """`93 MB/s`."""
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_s >= size:
            return f"{_short(bytes_per_s / size)} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def format_speed(steps_per_s: float) -> str:
    """`8.3 steps/s`; of slow ones, how long a step takes."""
    if 0 < steps_per_s < 0.1:
        return f"{_short(1 / steps_per_s)} s/step"
    return f"{_short(steps_per_s)} steps/s"


def format_ms(milliseconds: float) -> str:
    """`31 ms`."""
    return f"{_short(milliseconds / 1e3)} s" if milliseconds >= 10_000 else f"{_short(milliseconds)} ms"


def format_share(share: float) -> str:
    """`9 %`."""
    return f"{100 * share:.0f} %"


def format_time(seconds: float) -> str:
    """`1:02:03`, or `2:03`."""
    minutes, rest_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest_s:02}" if hours else f"{minutes}:{rest_s:02}"


def _short(number: float) -> str:
    """Two digits at least, no more than a reader can use."""
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}" if number >= 0.1 else f"{number:.2g}"
