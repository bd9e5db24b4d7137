"""An error on its way from the isolated process to its caller.

In: an exception there.  Out: the same exception here, with the story of where it was raised.
As text, never pickled: only our own errors and the system's come across.
"""

from __future__ import annotations

import json
import os
import traceback

import msgspec

import undertow.errors
from undertow.core.decoding import Decoder, Format
from undertow.errors import UndertowError


class _Carried(msgspec.Struct, frozen=True):
    kind: str
    text: str
    system: list[int | str | None]  # number, reason and file of an error of the system
    story: str


_errors: Decoder[_Carried] = Decoder(_Carried, "an error of the isolated process", format=Format.JSON)


def carry_error(error: UndertowError | OSError, fd: int) -> None:
    """Write it into the open file."""
    story = "".join(traceback.format_exception(error))
    system = [error.errno, error.strerror, error.filename] if isinstance(error, OSError) else []
    text = json.dumps({"kind": _name(error), "text": str(error), "system": system, "story": story}, default=str)
    os.pwrite(fd, text.encode(), 0)


def raise_carried(fd: int) -> None:
    """Raise what was written into the open file, if anything was."""
    text = os.pread(fd, os.fstat(fd).st_size, 0)
    if not text:
        return
    found = _errors.decode(text)
    error: UndertowError | OSError
    if found.kind:
        error = getattr(undertow.errors, found.kind, UndertowError)(found.text)
    else:
        error = OSError(*found.system) if found.system and found.system[0] is not None else OSError(found.text)
    error.add_note(f"Where it happened:\n{found.story}")
    raise error


def _name(error: UndertowError | OSError) -> str:
    """The nearest class that `undertow.errors` has; empty for an error of the system."""
    names = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "undertow.errors"]
    return names[0] if names else ""
