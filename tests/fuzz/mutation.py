"""Inputs for the fuzzer: valid samples, damaged by a seeded generator.

In: samples and a generator.  Out: bytes.  The same seed gives the same bytes.
Half of the damage is done to bytes, half to the decoded value, which is then encoded again: so well-formed messages
with impossible numbers, long lists and deep nesting come as often as garbage.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

BAD_TEXT = (b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf0\x90", b"\x00", b"\x1b[2J")
NUMBERS: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 7, 15, 16, 255, 65535, 65536, 65537, -5, -(2**31), -(2**63)),
    *(2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 10**18),
    *(math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e18, 1e-9, 0.5, -0.5, 3000000.0),
)
TEXTS = ("", "\0", "a" * 70, "a" * 5000, "\x1b]0;x\x07", "\u202e", "٣", "host:99999", "[::1]:7", "../..", "-1", "nan")
DEPTHS = (2, 50, 500, 3000)

Mutate = Callable[[random.Random, Sequence[bytes]], bytes]


def damage_bytes(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """One sample with a few bytes flipped, cut, repeated or mixed with another sample's."""
    data = bytearray(rng.choice(samples))
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(8):
            case 0 if data:
                data[min(place, len(data) - 1)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[min(place, len(data) - 1)] = rng.randrange(256)
            case 2:
                del data[place:]
            case 3:
                del data[place : place + rng.randrange(1, 9)]
            case 4:
                data[place:place] = rng.choice(BAD_TEXT)
            case 5:
                data[place:place] = data[place : place + rng.randrange(1, 64)]
            case 6:
                other = rng.choice(samples)
                data[place:] = other[rng.randrange(len(other) + 1) :]
            case 7:
                data[place:place] = rng.randbytes(rng.randrange(1, 9))
    return bytes(data)


def damage_msgpack(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    return _damage(rng, samples, msgspec.msgpack.decode, _encode_msgpack, b"\x91")


def damage_json(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    return _damage(rng, samples, json.loads, _encode_json, b"[")


def damage_lines(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """Several lines of JSON, most of them as they were."""
    whole = rng.choice(samples).splitlines(keepends=True)
    lines = list(whole)
    for _ in range(rng.choice((1, 2, 5))):
        place = rng.randrange(len(lines))
        text = whole[place].strip().rstrip(b",")
        if text[:1] != b"{" or rng.random() < 0.3:
            lines[place] = damage_bytes(rng, whole)
        else:
            lines[place] = damage_json(rng, [text]) + whole[place][len(text) :]
    return b"".join(lines)


def _damage(
    rng: random.Random,
    samples: Sequence[bytes],
    decode: Callable[[bytes], Any],
    encode: Callable[[Any], bytes],
    opening: bytes,
) -> bytes:
    if rng.random() < 0.5:
        return damage_bytes(rng, samples)
    value = decode(rng.choice(samples))
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = _change(rng, value)
    data = encode(value)
    if rng.random() < 0.02:  # deeper than an encoder goes
        place = rng.randrange(len(data) + 1)
        data = data[:place] + opening * 20_000 + data[place:]
    return data


def _change(rng: random.Random, value: Any) -> Any:
    """The value with one of its parts replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: _change(rng, value[key])}
    if isinstance(value, (list, tuple)) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        if rng.random() < 0.2:
            return [*value[:place], *value[place + rng.randrange(2) :], *value[: rng.randrange(3)]]
        return [*value[:place], _change(rng, value[place]), *value[place + 1 :]]
    return _replace(rng, value)


def _replace(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool):
        return rng.choice((True, False, None, 2))
    if isinstance(value, (int, float)) and rng.random() < 0.8:
        return rng.choice((*NUMBERS, value + 1, -value, value * 2))
    if isinstance(value, str) and rng.random() < 0.7:
        return rng.choice((*TEXTS, value + "x", value[:-1]))
    if isinstance(value, bytes) and rng.random() < 0.7:
        return damage_bytes(rng, [value])
    match rng.randrange(8):
        case 0:
            return None
        case 1:
            return rng.choice(NUMBERS)
        case 2:
            return rng.choice(TEXTS)
        case 3:
            return [value] * rng.choice((0, 1, 2, 100, 20_000 if _is_small(value) else 3))
        case 4:
            return {}
        case 5:
            return _nest(value, rng.choice(DEPTHS[:3]))
        case 6:
            return {str(number): value for number in range(rng.choice((1, 2, 300 if _is_small(value) else 3)))}
    return rng.randbytes(rng.randrange(64))


def _is_small(value: Any) -> bool:
    """Whether many of it are no burden for the generator itself."""
    return not isinstance(value, (list, dict)) and len(str(value)) < 100


def _nest(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _encode_json(value: Any) -> bytes:
    try:
        return json.dumps(value, default=str).encode()
    except RecursionError:
        return b"[" * 5000


def _encode_msgpack(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, RecursionError):  # a number or a depth that msgpack does not have
        return b"\xdd\xff\xff\xff\xff"
