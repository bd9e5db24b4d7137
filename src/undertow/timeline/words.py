"""How this page writes figures and names, so that the same figure looks the same everywhere.

In: nanoseconds, bytes, shares, names.  Out: a few words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from undertow.plan.planner import show_bytes
from undertow.report.columns import show_figure

__all__ = ["capitalise", "name_ranks", "name_steps", "name_tensors", "show_bytes", "show_ms", "show_share"]


def show_ms(time_ns: float) -> str:
    """`12.3 ms`; three digits are as many as a measurement here can have."""
    return f"{show_figure(time_ns / 1e6)} ms"


def show_share(part: float, whole: float) -> str:
    """`72 %`; a little is not nothing, and nearly all is not all."""
    if not whole or not part:
        return "0 %"
    percent = 100 * part / whole
    if percent < 0.5:
        return "under 1 %"
    if 99.5 <= percent < 100:
        return "over 99 %"
    return f"{percent:.0f} %"


def capitalise(sentence: str) -> str:
    """Only its first letter: names stay as they are."""
    return sentence[:1].upper() + sentence[1:]


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 1 and 3`, `ranks 1, 3, 4 and 12 more`."""
    names = [str(rank) for rank in sorted(set(ranks))] or ["none"]
    if len(names) == 1:
        return f"rank {names[0]}"
    if len(names) > 8:
        names = [*names[:6], f"{len(names) - 6} more"]
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def name_steps(numbers: Sequence[int]) -> str:
    """`step 7`, `steps 6 to 40`, `12 steps from 3 to 40`."""
    if len(numbers) == 1:
        return f"step {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"steps {numbers[0]} to {numbers[-1]}"
    return f"{len(numbers)} steps from {numbers[0]} to {numbers[-1]}"


def name_tensors(tensors: Sequence[str]) -> str:
    """What travels together: `fc.weight`, `bn1.weight + 3 more`."""
    if not tensors:
        return "unnamed"
    return tensors[0] if len(tensors) == 1 else f"{tensors[0]} + {len(tensors) - 1} more"
