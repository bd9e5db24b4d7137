"""Detection of ranks that all train on the same inputs.

In: every few passes, a digest of each rank's inputs, or None.  Out: True, once, when it is certain.
Inputs that never change, such as the fixed tensor of a benchmark, are no evidence.
"""

from __future__ import annotations

from collections.abc import Sequence

ENOUGH = 3  # comparisons in a row


class SameInputs:
    """Comparison of the inputs of one model across ranks."""

    def __init__(self) -> None:
        self._seen = 0
        self._last: int | None = None
        self._has_warned = False

    def compare(self, digests: Sequence[int | None]) -> bool:
        """Return whether to warn now, because all ranks had the same inputs several times, different each time."""
        first = digests[0]
        if first is None:
            return False
        if any(digest != first for digest in digests):
            self._seen = 0
        elif first != self._last:
            self._seen += 1
        self._last = first
        must_warn = self._seen >= ENOUGH and not self._has_warned
        self._has_warned |= must_warn
        return must_warn
