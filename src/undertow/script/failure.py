"""The last traceback of a process: the script's frames, without those that started it.

In: the exception that ends the script.  Out: what Python would have shown of it, through the script's own
`sys.excepthook` where it has one.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from undertow.script.frames import strip


class Hook:
    """In place of `sys.excepthook`, once, when the script has failed; `start` is the function that has started it."""

    def __init__(self, start: Any) -> None:
        self._start = start.__code__
        self._own: Any = getattr(sys, "excepthook", _MISSING)

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error = error.with_traceback(self._trim(trace))
        strip(error)
        sys.last_traceback = trace = error.__traceback__
        if self._own is _MISSING:
            del sys.excepthook
            _write("sys.excepthook is missing\n")
            sys.__excepthook__(kind, error, trace)
            return
        sys.excepthook = self._own
        try:
            self._own(kind, error, trace)
        except SystemExit:
            raise
        except BaseException as second:
            below = second.__traceback__ and second.__traceback__.tb_next
            _write("Error in sys.excepthook:\n")
            sys.__excepthook__(type(second), second.with_traceback(below), below)
            _write("\nOriginal exception was:\n")
            sys.__excepthook__(kind, error, trace)

    def _trim(self, trace: TracebackType | None) -> TracebackType | None:
        rest = trace
        while rest is not None and rest.tb_frame.f_code is not self._start:
            rest = rest.tb_next
        return trace if rest is None else rest.tb_next


_MISSING = object()


def _write(words: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(words)
