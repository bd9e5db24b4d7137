"""Any bytes from outside become a value or one kind of error."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import pytest

import undertow
from undertow.decoding import Count, Decoder, Finite, Format, Rank, Seconds, WrongSchema, decode_text
from undertow.errors import Garbled

SOURCE = Path(undertow.__file__).parent
# What only `undertow.decoding` may use: other modules would have to know all the errors that it raises.
DIRECT = re.compile(
    r"msgspec\.(msgpack|json|toml|yaml)\.(decode|Decoder)|msgspec\.convert|MsgspecError|msgspec\.\w*(Decode|Validation)Error"
    r"|\bjson\.loads?\b|tomllib|from msgspec\.\w+ import"
)


class Pair(msgspec.Struct, frozen=True):
    name: str
    number: int = 0


def test_no_other_module_decodes_what_comes_from_outside() -> None:
    sources = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "decoding.py"]
    found = [(str(path), line) for path in sources for line in path.read_text().splitlines() if DIRECT.search(line)]
    assert found == []


@pytest.mark.parametrize(
    ("format", "data"),
    [
        (Format.MSGPACK, b""),
        (Format.MSGPACK, b"\xc1"),
        (Format.MSGPACK, b"\x81\xa4name\xa2\xff\xfe"),
        (Format.MSGPACK, b"\x91" * 100_000),
        (Format.MSGPACK, b"\x82\xa4name\xa1x\xa1?" + b"\x91" * 100_000),
        (Format.MSGPACK, b"\xdd\xff\xff\xff\xff"),
        (Format.JSON, b'"\xff"'),
        (Format.JSON, b"[" * 100_000),
        (Format.JSON, b'{"name": "x", "number": 1' + b"0" * 5000 + b"}"),
        (Format.TOML, b'name = "\xff"'),
        (Format.TOML, b"name = " + b"[" * 10_000),
        (Format.TOML, b'name = "x"\nnumber = 1' + b"0" * 5000),
        (Format.TOML, b"\0"),
    ],
)
def test_bytes_that_are_no_such_value_are_garbled(format: Format, data: bytes) -> None:
    decoder: Decoder[Pair] = Decoder(Pair, "a pair", format=format)
    with pytest.raises(Garbled, match=r"^a pair cannot be read: ."):
        decoder.decode(data)


def test_the_error_has_the_reason_and_the_name_if_there_is_one() -> None:
    decoder: Decoder[Pair] = Decoder(Pair, format=Format.JSON)
    with pytest.raises(Garbled, match=r"^it is not text in UTF-8 \(byte 0\)$"):
        decoder.decode(b'{"name": "\xff"}')
    with pytest.raises(Garbled, match=r"^it is nested too deeply$"):
        decoder.decode(b'{"?": ' + b"[" * 100_000)
    with pytest.raises(WrongSchema, match=r"^Expected `int`, got `str` - at `\$.number`$"):
        decoder.decode(b'{"name": "x", "number": "y"}')
    with pytest.raises(Garbled, match=r"^an address cannot be read: it is not text in UTF-8"):
        decode_text(b"\xff", "an address")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *[(kind, value) for kind in (Finite, Seconds) for value in (math.nan, math.inf, -math.inf)],
        (Seconds, -1.0),
        (Seconds, 1e10),
        (Rank, -5),
        (Rank, 1 << 32),
        (Count, -1),
        (Count, 1 << 63),
    ],
)
def test_numbers_that_no_message_means_are_of_the_wrong_schema(kind: object, value: float) -> None:
    decoder: Decoder[float] = Decoder(kind)
    with pytest.raises(WrongSchema):
        decoder.decode(msgspec.msgpack.encode(value))


def test_what_was_encoded_is_decoded_from_any_buffer() -> None:
    data = msgspec.msgpack.encode(Pair("x", 3))
    decoder: Decoder[Pair] = Decoder(Pair)
    assert all(decoder.decode(kind(data)) == Pair("x", 3) for kind in (bytes, bytearray, memoryview))
