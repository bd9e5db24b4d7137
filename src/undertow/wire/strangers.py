"""Strangers: connections that have not shown yet that they belong here.

In: the strangers of one listener, oldest first.  Out: which of them must go.
A peer needs milliseconds to show the token.  So the stranger that has waited for longest is none, and makes room for
the next one: strangers who say nothing keep no peer out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

MAX_STRANGERS = 64
STRANGER_TIMEOUT_S = 5.0

_Stranger = TypeVar("_Stranger")


def find_surplus(strangers: Collection[_Stranger], most: int = MAX_STRANGERS) -> _Stranger | None:
    """The stranger that must go before the next one may come; None while there is room."""
    return next(iter(strangers)) if len(strangers) >= most else None
