"""Takes out of a traceback what is there only because undertow stands in the place of other functions.

In: an exception that ends a script.  Out: the same exception; its traceback, and those of exceptions that led to it,
read as Python alone would have written them.

A frame of ours goes if it has only passed a call on: frames of others follow it, or it has called the original,
written in C, itself (then it has a variable `original`).  An error of undertow's own keeps all frames.
"""

from __future__ import annotations

from types import TracebackType

from undertow.errors import UndertowError

# Modules whose functions are called in place of torch's, os's and others', without the script's knowledge.
_STANDING_IN = (
    "undertow.script.",
    "undertow.torch.claims",
    "undertow.torch.data.",
    "undertow.torch.hooks",
    "undertow.torch.native",
    "undertow.torch.stepping",
)
_COMPILER = "torch._dynamo.eval_frame"  # which calls what `never_compiled` marks


def strip(error: BaseException) -> None:
    """Do so for this exception and all that are shown with it."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if not isinstance(one, UndertowError):
            one.__traceback__ = _strip(one.__traceback__)
        waiting += [one.__cause__, one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ())]


def _strip(trace: TracebackType | None) -> TracebackType | None:
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    if not entries or (_is_ours(entries[-1]) and not _calls_original(entries[-1])):
        return _link(entries)
    return _link([entry for place, entry in enumerate(entries) if not _passes_on(entries, place)])


def _passes_on(entries: list[TracebackType], place: int) -> bool:
    if _is_ours(entries[place]):
        return True
    is_compilers = entries[place].tb_frame.f_globals.get("__name__") == _COMPILER
    return is_compilers and place > 0 and _is_ours(entries[place - 1])


def _is_ours(entry: TracebackType) -> bool:
    return str(entry.tb_frame.f_globals.get("__name__")).startswith(_STANDING_IN)


def _calls_original(entry: TracebackType) -> bool:
    code = entry.tb_frame.f_code
    return "original" in (*code.co_freevars, *code.co_varnames)


def _link(entries: list[TracebackType]) -> TracebackType | None:
    below = None
    for entry in reversed(entries):
        entry.tb_next = below
        below = entry
    return below
