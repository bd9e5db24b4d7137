"""Merges the traces of all ranks into one file, for viewers.

In: a folder with `rank-N.json`.  Out: `trace.json` in it.  All times are already on rank 0's clock, so lines are copied
unchanged; a last line that was cut off is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from undertow.decoding import Decoder, Format
from undertow.errors import Garbled
from undertow.files import replace_file

MERGED = "trace.json"
_anything: Decoder[object] = Decoder(object, format=Format.JSON)


def find_files(folder: Path) -> dict[int, Path]:
    """Return the trace files of a folder, by rank."""
    found = {}
    for path in folder.glob("rank-*.json"):
        match = re.fullmatch(r"rank-(\d+)\.json", path.name)
        if match is not None:
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def merge(folder: Path) -> Path | None:
    """Write the merged file and return its path, or None if there are no traces."""
    files = {rank: path for rank, path in find_files(folder).items() if path.is_file()}
    if not files:
        return None
    target = folder / MERGED
    with replace_file(target) as out:
        separator = b"[\n"
        for path in files.values():
            for line in _read_events(path):
                out.write(separator + line)
                separator = b",\n"
        out.write(b"\n]\n" if separator == b",\n" else b"[]\n")
    return target


def _read_events(path: Path) -> Iterator[bytes]:
    """Yield the lines that are complete events."""
    with path.open("rb") as lines:
        for line in lines:
            text = line.strip().rstrip(b",")
            if text in (b"[", b"]", b""):
                continue
            if line.endswith(b",\n") or _is_complete(text):
                yield text


def _is_complete(text: bytes) -> bool:
    try:
        _anything.decode(text)
    except Garbled:
        return False
    return True
