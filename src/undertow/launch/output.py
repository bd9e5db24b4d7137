"""What workers print, on its way to the user: prefixes, tails, and who is shown.

In: bytes in pieces of any size.  Out: the same bytes, each line with its prefix.
A line leaves when it is complete, so lines of different ranks never mix; a carriage
return ends a line as well, so progress bars move and keep their prefix.
Nothing is decoded: whatever bytes a worker writes arrive unchanged.
"""

from __future__ import annotations

import enum
import re
from collections import deque

TAIL_LINES = 200
TAIL_LINE_BYTES = 8192
# A line without an end must not fill the memory; it is broken here.
MAX_LINE_BYTES = 16 << 20

_COLOURS = (36, 33, 35, 32, 34, 31)  # cyan, yellow, magenta, green, blue, red
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")


class Shown(enum.Enum):
    """How a stream appears."""

    PREFIXED = "prefixed"
    RAW = "raw"
    HIDDEN = "hidden"


class Audible(enum.Enum):
    """Whose output the user gets to see."""

    ALL = "all"  # every line with its rank
    FIRST = "first"  # rank 0's, as it is
    BESIDE = "beside"  # the same, but nothing on a terminal: something else is drawn there


def make_prefix(rank: int, *, coloured: bool, name: str = "") -> bytes:
    """Of a rank, or of a job by name; neighbours differ in colour."""
    text = f"[{name or f'rank {rank}'}] "
    return f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m".encode() if coloured else text.encode()


class Lines:
    """Cuts one stream into lines and puts a prefix before each."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._parts: list[bytes] = []  # the unfinished line, joined only when its end comes
        self._size_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """What can be shown now."""
        return_pending = bool(self._parts) and self._parts[-1].endswith(b"\r")
        self._parts.append(data)
        self._size_bytes += len(data)
        if not return_pending and b"\n" not in data and b"\r" not in data:
            return self.finish() if self._size_bytes > MAX_LINE_BYTES else b""
        text = b"".join(self._parts)
        # A carriage return in the very last place may be half of \r\n: it waits for the next byte.
        end = 1 + max(text.rfind(b"\n"), text.rfind(b"\r", 0, len(text) - 1))
        self._parts, self._size_bytes = [text[end:]], len(text) - end
        return b"".join(map(self._dress, _LINE.findall(text[:end])))

    def finish(self) -> bytes:
        """The stream ended: show the unfinished line, and end it."""
        text = b"".join(self._parts)
        self._parts, self._size_bytes = [], 0
        return self._prefix + text + b"\n" if text else b""

    def _dress(self, line: bytes) -> bytes:
        return line if line == b"\r" else self._prefix + line


class Tail:
    """The last lines of a stream, for the report after a failure."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._rest = b""
        self._cut = False

    def feed(self, data: bytes) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-TAIL_LINE_BYTES:]
        self._cut = self._cut or len(self._lines) + len(lines) > TAIL_LINES
        self._lines.extend(line[-TAIL_LINE_BYTES:] for line in lines)

    def lines(self) -> tuple[str, ...]:
        """What a terminal would show: of an overwritten line, the last state."""
        kept = [*self._lines, *([self._rest] if self._rest else [])]
        shown = [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in kept]
        return ("(earlier lines left out)", *shown) if self._cut else tuple(shown)
