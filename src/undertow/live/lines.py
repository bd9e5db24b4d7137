"""The last lines of rank 0, for views that have no room for more.

In: bytes of its stdout and stderr, in pieces of any size.  Out: text, as a terminal would show it.
An unfinished line is shown as well, in its last state: a progress bar moves.
"""

from __future__ import annotations

from collections import deque

from undertow.plain_text import clean

KEPT_LINES = 50
KEPT_BYTES = 8192


class LastLines:
    """Of several streams together, each known by its number."""

    def __init__(self) -> None:
        self.count = 0  # pieces so far: whether there is something new
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._rest: dict[int, bytes] = {}

    def feed(self, stream: int, data: bytes) -> None:
        *whole, rest = (self._rest.get(stream, b"") + data).split(b"\n")
        self._lines.extend(map(_show, whole[-KEPT_LINES:]))
        self._rest[stream] = rest[-KEPT_BYTES:]
        self.count += 1

    def last(self) -> list[str]:
        unfinished = [_show(rest) for rest in self._rest.values() if rest]
        return [*self._lines, *unfinished][-KEPT_LINES:]


def _show(line: bytes) -> str:
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]
    return clean(shown[-KEPT_BYTES:].decode(errors="replace").rstrip())
