"""Text that every machine has: the source of Python's own standard library.

In: how much.  Out: its bytes as one tensor, and batches of windows out of it.
The same on every rank with the same Python; nothing is downloaded.
"""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

import torch

from undertow.errors import ConfigError

MOST_BYTES = 2 << 20


@cache
def load_text(most_bytes: int = MOST_BYTES) -> torch.Tensor:
    """The modules of the standard library one after the other, by name, up to `most_bytes`."""
    return read_text(Path(sysconfig.get_path("stdlib")), most_bytes)


def read_text(folder: Path, most_bytes: int) -> torch.Tensor:
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= most_bytes:
            break
    if not text:
        raise ConfigError(f"no *.py in {folder}: this Python has no sources to train on; use one that was not stripped")
    return torch.frombuffer(text[:most_bytes], dtype=torch.uint8)


def draw_windows(text: torch.Tensor, generator: torch.Generator, *, count: int, length: int) -> torch.Tensor:
    """`count` windows of `length` bytes from anywhere in the text, as int64."""
    if len(text) < length:
        raise ConfigError(f"a text of {len(text)} bytes has no window of {length} bytes; give a longer text")
    starts = torch.randint(len(text) - length + 1, (count, 1), generator=generator)
    return text[starts + torch.arange(length)].long()
