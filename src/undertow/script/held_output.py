"""Holds back the output of all ranks but 0, so that the user does not see it several times.

In: what the script writes to stdout and stderr.  Out: the same bytes, later or never.
Output is held until it is known whether the script knows of other ranks; then it is shown or dropped.  Held output is
shown when the process ends, normally or by an exception.  The last megabyte of dropped output is kept, to be recalled
if the script joins the other workers itself later.
The script sees ordinary streams; only the lowest layer, which writes to the file, is replaced.
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

# If more than this is held, it is shown at once: the script may never make an optimizer.
MOST_HELD_BYTES = 1 << 20
_CUT = b"undertow: what this worker printed before is not shown: only the last megabyte was kept\n"


class OutputMode(enum.Enum):
    """Treatment of a rank's output."""

    HOLD = "hold"
    DROP = "drop"
    SHOW = "show"


class HeldOutput:
    """The held output of a rank other than 0.  `start` replaces both streams, `stop` restores them."""

    def __init__(self) -> None:
        self.mode = OutputMode.SHOW
        self._lock = threading.RLock()  # guards held and dropped output: any thread may print
        self._held: list[tuple[Any, bytes]] = []
        self._held_bytes = 0
        self._dropped: deque[tuple[Any, bytes]] = deque()  # the last megabyte, for `recall`
        self._dropped_bytes = 0
        self._is_cut = False  # older output is lost
        # By name: the process's own stream, and its replacement.
        self._streams: dict[str, tuple[Any, io.TextIOWrapper]] = {}
        self._is_registered = False

    def start(self) -> None:
        self.mode = OutputMode.HOLD
        for name in ("stdout", "stderr"):
            own = getattr(sys, name)
            raw = _find_raw(own)
            if raw is not None and name not in self._streams:
                own.flush()
                self._streams[name] = own, _copy_stream(own, _RawStream(self, raw))
                setattr(sys, name, self._streams[name][1])
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self.show)
            os.register_at_fork(after_in_child=self._forget)

    def show(self) -> None:
        """Show held and later output; if output is being dropped, continue to drop it."""
        self._flush()
        if self.mode is OutputMode.HOLD:
            self._show_held()

    def drop(self) -> None:
        """Drop held and later output, until it is recalled."""
        self._flush()
        with self._lock:
            self.mode, held, self._held = OutputMode.DROP, self._held, []
            for raw, data in held:
                self._keep_dropped(raw, data)

    def recall(self) -> None:
        """Hold the dropped output that is kept, so that it is shown with the next output."""
        self._flush()
        with self._lock:
            if self.mode is OutputMode.DROP:
                self.mode, self._held = OutputMode.HOLD, list(self._dropped)
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
        """Show all output, and restore the streams."""
        self.show_all()
        for name, (own, ours) in self._streams.items():
            if getattr(sys, name) is ours:
                setattr(sys, name, own)
        self._streams = {}

    def show_all(self) -> None:
        """Show held and later output, even if output was dropped so far."""
        self.show()
        self.mode = OutputMode.SHOW

    def write(self, raw: io.RawIOBase, data: bytes) -> int | None:
        """Write to `raw`, hold or drop the data; return the number of bytes taken."""
        with self._lock:
            if self.mode is OutputMode.DROP:
                self._keep_dropped(raw, data)
                return len(data)
            if self.mode is OutputMode.HOLD:
                self._held.append((raw, data))
                self._held_bytes += len(data)
                if self._held_bytes > MOST_HELD_BYTES:
                    self._show_held()
                return len(data)
        return raw.write(data)

    def _show_held(self) -> None:
        with self._lock, contextlib.suppress(OSError):  # such as a pipe that is no longer read
            self.mode = OutputMode.SHOW
            held, self._held = self._held, []
            for raw, data in held:
                rest = data
                while rest:
                    rest = rest[raw.write(rest) or 0 :]

    def _flush(self) -> None:
        """Flush the streams' buffers, so that output written before a change of mode is treated in the old mode."""
        for _, ours in self._streams.values():
            with contextlib.suppress(ValueError, OSError):  # closed, detached, or a pipe that is no longer read
                ours.flush()

    def _forget(self) -> None:
        """Forget held output in a forked child: the parent shows it."""
        self._lock = threading.RLock()
        self._held, self._dropped = [], deque()
        if self.mode is OutputMode.HOLD:
            self.mode = OutputMode.SHOW


class _RawStream(io.RawIOBase):
    """The lowest layer of a replaced stream: passes writes to `HeldOutput`, all other calls to the file."""

    def __init__(self, output: HeldOutput, own: io.RawIOBase) -> None:
        self._output = output
        self._own = own
        self.name = getattr(own, "name", None)
        self.mode = getattr(own, "mode", None)

    def write(self, data: Any) -> int | None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._output.write(self._own, bytes(data))

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._own.fileno()

    def isatty(self) -> bool:
        return self._own.isatty()


def _find_raw(stream: Any) -> io.RawIOBase | None:
    """Return the file below a stream; None if it is closed, or not an ordinary text stream."""
    if type(stream) is not io.TextIOWrapper or stream.closed:
        return None
    raw = getattr(stream.buffer, "raw", stream.buffer)
    return raw if isinstance(raw, io.RawIOBase) else None


def _copy_stream(own: io.TextIOWrapper, raw: io.RawIOBase) -> io.TextIOWrapper:
    """Return a stream with the same layers as `own` over `raw`."""
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
