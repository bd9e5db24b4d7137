"""Transfer of errors to another process of the same user, through an open file.

In: an `UndertowError` or `OSError` in one process.  Out: an equal error in the other process.
The file holds the error's message and facts; nothing is pickled.  An error whose class is not in `undertow.errors`
becomes one of the nearest class that is.
"""

from __future__ import annotations

import json
import os
import traceback

import msgspec

import undertow.errors
from undertow.decoding import Decoder, Format
from undertow.errors import UndertowError

Fact = str | bool | int | float | tuple[int, ...] | None


class _WrittenError(msgspec.Struct, frozen=True):
    kind: str  # name of the class; empty for an `OSError`
    message: str
    facts: dict[str, Fact]
    system: list[int | str | None]  # number, reason and file of an `OSError`
    story: str  # traceback


_KINDS: dict[str, type[UndertowError]] = {
    name: kind
    for name, kind in vars(undertow.errors).items()
    if isinstance(kind, type) and issubclass(kind, UndertowError)
}
_errors: Decoder[_WrittenError] = Decoder(_WrittenError, "an error of another process", format=Format.JSON)


def write_error(error: UndertowError | OSError, fd: int) -> None:
    """Write the error into the open file."""
    written = {
        "kind": next((kind.__name__ for kind in type(error).__mro__ if kind in _KINDS.values()), ""),
        "message": str(error),
        "facts": {name: value for name, value in vars(error).items() if name != "__notes__"},
        "system": [error.errno, error.strerror, error.filename] if isinstance(error, OSError) else [],
        "story": "".join(traceback.format_exception(error)),
    }
    os.pwrite(fd, json.dumps(written, default=str).encode(), 0)


def read_error(fd: int) -> UndertowError | OSError | None:
    """Return the error in the open file, if there is one, with a note about where it was raised."""
    text = os.pread(fd, os.fstat(fd).st_size, 0)
    if not text:
        return None
    found = _errors.decode(text)
    error: UndertowError | OSError
    if found.kind:
        error = _KINDS.get(found.kind, UndertowError)(found.message)
        vars(error).update({name: value for name, value in found.facts.items() if name in vars(error)})
    else:
        error = OSError(*found.system) if found.system and found.system[0] is not None else OSError(found.message)
    error.add_note(f"Where it happened:\n{found.story}")
    return error
