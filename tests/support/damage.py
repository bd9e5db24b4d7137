"""Files that are damaged on purpose: the same seed makes the same damage."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

# What a field may hold after a slip of a disk, a pen or somebody who means harm.
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 7, 2**31, 2**63, -(2**63), 10**30, 1e308, -1e308, 1e15, -0.5, 1e-300, "",
    "x", "\x1b[31mred\x07",     "<script>", "12", [], [None], ["x"], [[]], {}, {"x": 1}, {"0": [1]}, "a" * 3000,
)  # fmt: skip


def damage_json(dice: random.Random, document: Any) -> Any:
    """Change, remove, repeat or swap some of its parts."""
    document = copy.deepcopy(document)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        _damage_one(dice, document)
    return document


def _damage_one(dice: random.Random, document: Any) -> None:
    holders = [part for part in _walk(document) if part]
    if not holders:
        return
    part = dice.choice(holders)
    key: Any = dice.choice(list(part)) if isinstance(part, dict) else dice.randrange(len(part))
    act = dice.randrange(6)
    if act == 0:
        del part[key]
    elif act == 1 and isinstance(part, list):
        part.insert(dice.randrange(len(part) + 1), copy.deepcopy(part[key]))
    elif act == 2 and isinstance(part, list):
        dice.shuffle(part)
    elif act == 3 and isinstance(part[key], int | float):
        part[key] = dice.choice((-part[key], part[key] + 1, part[key] * 1000, part[key] / 3, int(part[key]) ^ 1))
    else:
        part[key] = copy.deepcopy(dice.choice(VALUES))


def _walk(document: Any) -> list[Any]:
    if not isinstance(document, dict | list):
        return []
    children = document.values() if isinstance(document, dict) else document
    return [document, *(part for child in children for part in _walk(child))]


def damage_bytes(dice: random.Random, data: bytes) -> bytes:
    """Cut it, flip bits, repeat a piece, or put garbage in."""
    where = dice.randrange(len(data) + 1)
    act = dice.randrange(5)
    if act == 0:
        return data[:where]
    if act == 1:
        return data[:where] + dice.randbytes(dice.randrange(1, 20)) + data[where:]
    if act == 2:
        return data[:where] + data[where // 2 :]
    if act == 3:
        return data[where:]
    broken = bytearray(data)
    for _ in range(min(len(broken), 5)):
        broken[dice.randrange(len(broken))] ^= 1 << dice.randrange(8)
    return bytes(broken)


def damage_file(dice: random.Random, document: Any) -> bytes:
    """As bytes: most often still JSON, with something in it that is not as it should be."""
    if dice.random() < 0.8:
        return json.dumps(damage_json(dice, document)).encode(errors="surrogatepass")
    # Bytes that are no UTF-8 are the decoder's matter.
    return damage_bytes(dice, json.dumps(document).encode()).decode(errors="replace").encode()
