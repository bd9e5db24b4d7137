"""Plans and profiles as JSON files.

In: a path and a document.  Out: the checked document, or `PlanError` with the file's name and the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from undertow.decoding import Decoder
from undertow.errors import Garbled, PlanError
from undertow.files import write_file

# Increased when an older undertow would misread a file, not when a field is added.
FORMAT = 1


class Document(Protocol):
    @property
    def format(self) -> int: ...


D = TypeVar("D", bound=Document)


def read_document(path: str | os.PathLike[str], what: str, decoder: Decoder[D], check: Callable[[D], None]) -> D:
    """Read a document; `what` is the name of its kind in errors."""
    name = os.fspath(path)
    try:
        document = decoder.decode(Path(path).read_bytes())
        if document.format == FORMAT:
            check(document)
    except OSError as error:
        raise PlanError(f"cannot read the {what} {name}: {error.strerror}") from None
    except (Garbled, PlanError) as error:
        raise PlanError(f"{name} is not a {what} of undertow: {error}") from None
    if document.format != FORMAT:
        raise PlanError(f"the {what} {name} has format {document.format}, not {FORMAT}: make it again")
    return document


def write_document(path: str | os.PathLike[str], what: str, text: bytes) -> None:
    """Write the JSON of a document."""
    try:
        write_file(path, text + b"\n")
    except OSError as error:
        raise PlanError(f"cannot write the {what} {os.fspath(path)}: {error.strerror}") from None
