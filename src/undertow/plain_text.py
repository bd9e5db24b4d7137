"""Words of others, made safe to show: names, messages and output that come from a file, a script or a peer.

In: any text.  Out: text that cannot move a cursor, ring, change a title or turn the direction of writing.
The one rule for terminals; pages escape for HTML on top of it.
"""

from __future__ import annotations

import re

# Colours, cursor movements, window titles: the sequences of ECMA-48, and those that end with a bell.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
LONGEST_LINE = 500
LONGEST_MESSAGE = 20_000


def clean(text: str, longest: int = LONGEST_LINE) -> str:
    """One line, without anything that moves a cursor, rings, or turns the direction of writing."""
    if len(text) <= longest and text.isprintable():
        return text
    plain = _ESCAPES.sub("", text[: 4 * longest].replace("\t", "    "))
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in plain)[:longest]


def clean_json(data: bytes) -> str:
    """JSON that is safe to print: what is not printable is escaped in it, which only strings can hold."""
    letters = (letter if letter.isprintable() or letter == "\n" else _escape(letter) for letter in data.decode())
    return "".join(letters)


def _escape(letter: str) -> str:
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def clean_lines(text: str) -> str:
    """Clean a text line by line; line breaks stay."""
    return "\n".join(clean(line, LONGEST_MESSAGE) for line in text.split("\n"))
