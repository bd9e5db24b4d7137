"""Detection of ranks that all train on the same inputs.

In: one digest of the inputs per rank, every few passes, or None.  Out: True, once, when it is certain.
Inputs that never change, such as the fixed tensor of a benchmark, say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

ENOUGH = 3  # comparisons in a row


class SameInputs:
    """Comparison of the inputs of one model across ranks."""

    def __init__(self) -> None:
        self._seen = 0
        self._last: int | None = None
        self._is_told = False

    def compare(self, digests: Sequence[int | None]) -> bool:
        """Return whether to warn now: all ranks were given the same inputs, new ones each time."""
        first = digests[0]
        if first is None:
            return False
        if any(digest != first for digest in digests):
            self._seen = 0
        elif first != self._last:
            self._seen += 1
        self._last = first
        is_certain = self._seen >= ENOUGH and not self._is_told
        self._is_told |= is_certain
        return is_certain
