"""Strangers: connections that have not proved knowledge of the token yet.

In: the strangers of one listener, oldest first.  Out: the stranger to drop, if there are too many.
A peer needs only milliseconds for the proof.  The oldest stranger is therefore no peer and is dropped for the next
one, so silent strangers cannot keep peers out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

MAX_STRANGERS = 64
STRANGER_TIMEOUT_S = 5.0

_Stranger = TypeVar("_Stranger")


def find_surplus(strangers: Collection[_Stranger], most: int = MAX_STRANGERS) -> _Stranger | None:
    """Return the stranger to drop before the next one is accepted; None if there is room."""
    return next(iter(strangers)) if len(strangers) >= most else None
