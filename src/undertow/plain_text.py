"""Text from outside made safe to show: names, messages and output of files, scripts and peers.

In: any text.  Out: text that cannot move a cursor, ring a bell, change a title or reverse the direction of writing.
The only rule for terminals; pages escape for HTML as well.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

# Colours, cursor movements, window titles: the sequences of ECMA-48, and those that end with a bell.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
LONGEST_LINE = 500
LONGEST_MESSAGE = 20_000


def clean(text: str, longest: int = LONGEST_LINE) -> str:
    """Return one line without control characters, cut to its longest length."""
    if len(text) <= longest and text.isprintable():
        return text
    plain = _ESCAPES.sub("", text[: 4 * longest].replace("\t", "    "))
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in plain)[:longest]


def capitalise(sentence: str) -> str:
    """Capitalise the first letter only: names stay as they are."""
    return sentence[:1].upper() + sentence[1:]


def list_words(words: Sequence[str], most: int = sys.maxsize) -> str:
    """Join words as a sentence does: `a`, `a and b`, `a, b and c`; those beyond `most` are only counted."""
    shown = [*words[:most], *([f"{len(words) - most} more"] if len(words) > most else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def name_some(names: Sequence[str], most: int) -> str:
    """Quote the first few names, and say how many more there are."""
    return list_words(list(map(repr, names)), most)


def show_line(line: bytes) -> str:
    """Decode a line of output as a terminal would show it: the last state of an overwritten line."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def clean_json(data: bytes) -> str:
    """Return JSON that is safe to print: unprintable characters, which only its strings can have, are escaped."""
    letters = (letter if letter.isprintable() or letter == "\n" else _escape(letter) for letter in data.decode())
    return "".join(letters)


def _escape(letter: str) -> str:
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def clean_lines(text: str) -> str:
    """Clean text line by line; line breaks stay."""
    return "\n".join(clean(line, LONGEST_MESSAGE) for line in text.split("\n"))
