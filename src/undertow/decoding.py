"""Decoding of messages from other processes and of files.

In: bytes.  Out: a value of the expected type, or `Garbled`, whatever is wrong with the bytes.
This is the only module that calls msgspec's decoders, which a test ensures.  On text that is not UTF-8, deep nesting
and numbers out of range they raise errors other than msgspec's, which would end a thread that serves others.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from undertow.errors import Garbled

T = TypeVar("T")

# Numbers in messages: without limits msgpack would also carry NaN and infinity, and JSON integers of any size.
Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
WeightedSeconds = Annotated[float, msgspec.Meta(ge=0, le=1e16)]  # divided by a weight, which may be small
Count = Annotated[int, msgspec.Meta(ge=0, le=sys.maxsize)]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]

# The errors that decoders raise; msgspec's errors and UnicodeDecodeError are ValueErrors.
_ERRORS = (ValueError, RecursionError, OverflowError, MemoryError)


class WrongSchema(Garbled):
    """A well-formed value of an unexpected type; the message ends with the field."""


class Format(enum.Enum):
    MSGPACK = "msgpack"
    JSON = "JSON"
    TOML = "TOML"


class Decoder(Generic[T]):
    """Decoder for one type of value.  `what`, as in "a control message", names the value in errors."""

    def __init__(self, kind: Any, what: str = "", *, format: Format = Format.MSGPACK) -> None:
        self._decode = _find_decode(kind, format)
        self._what = what

    def decode(self, data: Any) -> T:
        """Decode a buffer of bytes.  Raises `Garbled` if it does not hold such a value."""
        try:
            value: T = self._decode(data)
        except _ERRORS as error:
            kind = WrongSchema if isinstance(error, msgspec.ValidationError) else Garbled
            reason = _describe(error)
            raise kind(f"{self._what} cannot be read: {reason}" if self._what else reason) from None
        return value


def decode_text(data: bytes, what: str) -> str:
    """Decode text in UTF-8.  Raises `Garbled`."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Garbled(f"{what} cannot be read: {_describe(error)}") from None


def _find_decode(kind: Any, format: Format) -> Callable[[Any], Any]:
    match format:
        case Format.MSGPACK:
            return msgspec.msgpack.Decoder(kind).decode
        case Format.JSON:
            return msgspec.json.Decoder(kind).decode
        case Format.TOML:
            return lambda data: msgspec.toml.decode(data, type=kind)


def _describe(error: Exception) -> str:
    match error:
        case UnicodeDecodeError():
            return f"it is not text in UTF-8 (byte {error.start})"
        case RecursionError():
            return "it is nested too deeply"
        case MemoryError():
            return "it takes more memory than there is"
    return str(error)
