"""Shows the exception that ends a script as Python would have shown it.

In: that exception.  Out: its traceback, and those of the exceptions that led to it, without undertow's frames; shown by
the script's own `sys.excepthook` where it has one.

A frame of undertow's code is removed if it only forwarded a call: other frames follow it, or it called an original
written in C (such a function has a variable named `original`).  undertow's own errors keep all their frames.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from undertow.errors import UndertowError
from undertow.runtime.launcher_notes import list_shown

# Modules whose functions replace functions of torch, os and others without the script's knowledge.
_REPLACING = (
    "undertow.script.",
    "undertow.torch.claims.step_check",
    "undertow.torch.data.",
    "undertow.torch.modules.hooks",
    "undertow.torch.pending.native_functions",
    "undertow.torch.gates.stepping",
)
_COMPILER = "torch._dynamo.eval_frame"  # its frames call the functions that `never_compiled` marks


def strip_own_frames(error: BaseException) -> None:
    """Remove undertow's frames from this exception and from all exceptions that are shown with it."""
    for shown in list_shown(error):
        if not isinstance(shown, UndertowError):
            shown.__traceback__ = _strip(shown.__traceback__)


def _strip(trace: TracebackType | None) -> TracebackType | None:
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    if not entries or (_is_ours(entries[-1]) and not _calls_original(entries[-1])):
        return _link(entries)
    return _link([entry for index, entry in enumerate(entries) if not _passes_on(entries, index)])


def _passes_on(entries: list[TracebackType], index: int) -> bool:
    if _is_ours(entries[index]):
        return True
    is_compilers = entries[index].tb_frame.f_globals.get("__name__") == _COMPILER
    return is_compilers and index > 0 and _is_ours(entries[index - 1])


def _is_ours(entry: TracebackType) -> bool:
    return str(entry.tb_frame.f_globals.get("__name__")).startswith(_REPLACING)


def _calls_original(entry: TracebackType) -> bool:
    code = entry.tb_frame.f_code
    return "original" in (*code.co_freevars, *code.co_varnames)


def _link(entries: list[TracebackType]) -> TracebackType | None:
    below = None
    for entry in reversed(entries):
        entry.tb_next = below
        below = entry
    return below


class ExceptionHook:
    """A one-time replacement of `sys.excepthook` for a failed script, which was started by the function `start`."""

    def __init__(self, start: Any) -> None:
        self._start = start.__code__
        self._own: Any = getattr(sys, "excepthook", _MISSING)

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error = error.with_traceback(self._trim(trace))
        strip_own_frames(error)
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


def _write(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(line)
