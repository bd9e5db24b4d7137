"""Lists of names in messages: a few are named, the rest is counted."""

from __future__ import annotations

from collections.abc import Sequence


def name_some(names: Sequence[str], most: int) -> str:
    """Lists the first few names, and says how many more there are."""
    shown = [repr(name) for name in names[:most]]
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
