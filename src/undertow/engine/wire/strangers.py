"""Strangers: connections that have not shown the token yet.

In: the strangers of one listener, oldest first.  Out: the one to drop, if there are too many.
A peer needs milliseconds to show the token.  So the stranger that has waited for longest is no peer, and makes room
for the next one: silent strangers keep no peer out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

MAX_STRANGERS = 64
STRANGER_TIMEOUT_S = 5.0

_Stranger = TypeVar("_Stranger")


def find_surplus(strangers: Collection[_Stranger], most: int = MAX_STRANGERS) -> _Stranger | None:
    """Return the stranger to drop before the next one is accepted; None while there is room."""
    return next(iter(strangers)) if len(strangers) >= most else None
