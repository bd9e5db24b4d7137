"""Text from outside, made safe to print: names, messages and output from files, scripts and peers.

In: any text.  Out: text that cannot move the cursor, ring the bell, change a title or reverse the direction of writing.
All text for terminals goes through here; pages also escape it for HTML.
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
    """Return one line without control characters, cut to at most `longest` characters."""
    if len(text) <= longest and text.isprintable():
        return text
    plain = _ESCAPES.sub("", text[: 4 * longest].replace("\t", "    "))
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in plain)[:longest]


def capitalise(sentence: str) -> str:
    """Capitalise the first letter and leave all others, such as those of names, unchanged."""
    return sentence[:1].upper() + sentence[1:]


def list_words(words: Sequence[str], most: int = sys.maxsize) -> str:
    """Join words as in a sentence: `a`, `a and b`, `a, b and c`.  Words beyond `most` are only counted."""
    shown = [*words[:most], *([f"{len(words) - most} more"] if len(words) > most else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def name_some(names: Sequence[str], most: int) -> str:
    """Quote the first few names and count the others."""
    return list_words(list(map(repr, names)), most)


def show_line(line: bytes) -> str:
    """Decode a line of output as a terminal shows it: after a carriage return, only the last text."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def clean_json(data: bytes) -> str:
    """Return JSON that is safe to print: unprintable characters, which occur only in strings, are escaped."""
    letters = (letter if letter.isprintable() or letter == "\n" else _escape(letter) for letter in data.decode())
    return "".join(letters)


def _escape(letter: str) -> str:
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def clean_lines(text: str) -> str:
    """Clean text line by line, keeping the line breaks."""
    return "\n".join(clean(line, LONGEST_MESSAGE) for line in text.split("\n"))
