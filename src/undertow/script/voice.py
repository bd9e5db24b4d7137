"""What a rank prints that nobody should see several times.

In: whatever the script writes to stdout and stderr.  Out: the same bytes, later or never.
Until it is known whether a script knows of other ranks, the others' words are held back; then they are shown or
dropped.  The end of the process, and an exception that ends it, show what is held.  What was dropped is recalled if
the script joins the others itself after all; the last megabyte of it is kept for that.
To whoever uses them the streams are ordinary ones; only the last layer, which would write to the file, is ours.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import io
import os
import sys
import threading
from collections import deque
from typing import Any

# A script that goes on for long without an optimizer is none of ours.
MOST_HELD_BYTES = 1 << 20
_CUT = b"undertow: what this worker printed before is not shown: only the last megabyte was kept\n"


class Manner(enum.Enum):
    HOLD = "hold"
    DROP = "drop"
    SHOW = "show"


class Voice:
    """Of one rank that is not the first.  `start` puts it in place of both streams, `stop` takes it back."""

    def __init__(self) -> None:
        self.manner = Manner.SHOW
        self._lock = threading.RLock()  # of what is held: any thread may print
        self._held: list[tuple[Any, bytes]] = []
        self._held_bytes = 0
        self._dropped: deque[tuple[Any, bytes]] = deque()  # the last of it, for `recall`
        self._dropped_bytes = 0
        self._is_cut = False  # some of it was too much to keep
        self._streams: dict[str, tuple[Any, io.TextIOWrapper]] = {}  # by name: the process's own, and ours
        self._is_known = False

    def start(self) -> None:
        self.manner = Manner.HOLD
        for name in ("stdout", "stderr"):
            own = getattr(sys, name)
            raw = _find_raw(own)
            if raw is not None and name not in self._streams:
                own.flush()
                self._streams[name] = own, _copy_stream(own, _Raw(self, raw))
                setattr(sys, name, self._streams[name][1])
        if not self._is_known:
            self._is_known = True
            atexit.register(self.show)
            os.register_at_fork(after_in_child=self._forget)

    def show(self) -> None:
        """What was held, and all that comes; what was dropped is gone."""
        self._flush()
        if self.manner is Manner.HOLD:
            self._show_held()

    def drop(self) -> None:
        """Say nothing any more, and nothing of what was held, unless it is recalled."""
        self._flush()
        with self._lock:
            self.manner, held, self._held = Manner.DROP, self._held, []
            for raw, data in held:
                self._keep_dropped(raw, data)

    def recall(self) -> None:
        """It was wrong to drop anything: hold it, so that it is shown with what comes next."""
        self._flush()
        with self._lock:
            if self.manner is Manner.DROP:
                self.manner, self._held = Manner.HOLD, list(self._dropped)
                if self._is_cut:
                    self._held.insert(0, (self._held[0][0], _CUT))
                self._dropped, self._dropped_bytes, self._is_cut = deque(), 0, False

    def _keep_dropped(self, raw: io.RawIOBase, data: bytes) -> None:
        self._dropped.append((raw, data))
        self._dropped_bytes += len(data)
        while self._dropped_bytes > MOST_HELD_BYTES and len(self._dropped) > 1:
            self._dropped_bytes -= len(self._dropped.popleft()[1])
            self._is_cut = True

    def stop(self) -> None:
        """From now on, and whatever was meant for it, as if it had never been here."""
        self.speak_up()
        for name, (own, ours) in self._streams.items():
            if getattr(sys, name) is ours:
                setattr(sys, name, own)
        self._streams = {}

    def speak_up(self) -> None:
        """An exception ends the process: it must be heard."""
        self.show()
        self.manner = Manner.SHOW

    def say(self, raw: io.RawIOBase, data: bytes) -> int | None:
        """As `raw.write`."""
        with self._lock:
            if self.manner is Manner.DROP:
                self._keep_dropped(raw, data)
                return len(data)
            if self.manner is Manner.HOLD:
                self._held.append((raw, data))
                self._held_bytes += len(data)
                if self._held_bytes > MOST_HELD_BYTES:
                    self._show_held()
                return len(data)
        return raw.write(data)

    def _show_held(self) -> None:
        with self._lock, contextlib.suppress(OSError):  # nobody reads it
            self.manner = Manner.SHOW
            held, self._held = self._held, []
            for raw, data in held:
                rest = data
                while rest:
                    rest = rest[raw.write(rest) or 0 :]

    def _flush(self) -> None:
        """What the streams have not handed down yet was said before."""
        for _, ours in self._streams.values():
            with contextlib.suppress(ValueError, OSError):  # closed, detached, or nobody reads it
                ours.flush()

    def _forget(self) -> None:
        """In a forked child: what is held is the parent's to show."""
        self._lock = threading.RLock()
        self._held, self._dropped = [], deque()
        if self.manner is Manner.HOLD:
            self.manner = Manner.SHOW


class _Raw(io.RawIOBase):
    """The file below a stream: all but writing is its own."""

    def __init__(self, voice: Voice, own: Any) -> None:
        self._voice = voice
        self._own = own
        self.name = getattr(own, "name", None)
        self.mode = getattr(own, "mode", None)

    def write(self, data: Any) -> int | None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._voice.say(self._own, bytes(data))

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        number: int = self._own.fileno()
        return number

    def isatty(self) -> bool:
        answer: bool = self._own.isatty()
        return answer


def _find_raw(stream: Any) -> io.RawIOBase | None:
    """The file below it; None if it is closed, or an invention of somebody else's."""
    if type(stream) is not io.TextIOWrapper or stream.closed:
        return None
    raw = getattr(stream.buffer, "raw", stream.buffer)
    return raw if isinstance(raw, io.RawIOBase) else None


def _copy_stream(own: io.TextIOWrapper, raw: io.RawIOBase) -> io.TextIOWrapper:
    """The same layers, down to this file."""
    is_buffered = not isinstance(own.buffer, io.RawIOBase)
    below: Any = io.BufferedWriter(raw) if is_buffered else raw
    copy = io.TextIOWrapper(
        below,
        encoding=own.encoding,
        errors=own.errors,
        newline="\n",
        line_buffering=own.line_buffering,
        write_through=own.write_through,
    )
    vars(copy).update(vars(own))
    return copy
