"""Checkpoints of single-process scripts: rank 0 writes them; the other ranks keep their own copies in memory.

In: `torch.save` and `torch.load` of the script, what `os`, `shutil` and `pathlib` do to the files, and the checkpoints
of Lightning and ignite.
Out: one complete file, written by rank 0.  Another rank that reads a checkpoint back reads its own copy, so it need
not wait for rank 0 or share its disk.  If the script turns out to know of ranks, every rank writes its own files.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from undertow.files import write_whole

# The last, the best, and a temporary file that becomes one of the two.  Scripts that number their files do not read old
# files back.
LEAST_KEPT = 3
# Older copies are kept up to this total: if the script joins the other workers later, each rank has to write its own.
MOST_KEPT_BYTES = 64 << 20


class Checkpoints:
    """The checkpoints of a rank other than 0.  Several threads may save; lookups take no lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards the fields below
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._dropped: set[str | None] = set()  # paths that rank 0 has written instead
        self._lost: dict[str, None] = {}  # paths in `_dropped` whose copy is no longer kept

    def save(self, original: Callable[..., None], obj: object, f: Any, *arguments: Any, **options: Any) -> None:
        """Call torch's function, and keep the bytes instead of writing the file.

        A file that the script has opened itself is written by every rank, because opening it has truncated it.
        """
        path = _find_path(f)
        if path is None:
            original(obj, f, *arguments, **options)
            return
        copy = io.BytesIO()
        original(obj, copy, *arguments, **options)
        with self._lock:
            self._dropped.add(path)
            self._keep(path, copy.getvalue())

    def _keep(self, path: str, data: bytes) -> None:
        self._lost.pop(path, None)
        self._kept[path] = data
        self._kept.move_to_end(path)
        while len(self._kept) > LEAST_KEPT and sum(map(len, self._kept.values())) > MOST_KEPT_BYTES:
            self._lost[self._kept.popitem(last=False)[0]] = None

    def rename(self, original: Callable[..., None], src: Any, dst: Any, **options: Any) -> None:
        """Replace os.replace and os.rename: scripts rename a checkpoint that they wrote under a temporary name."""
        if (old := _find_path(src)) not in self._dropped:
            original(src, dst, **options)
        elif old is not None and (new := _find_path(dst)) is not None:
            with self._lock:
                self._dropped.add(new)
                self._lost.pop(new, None)
                if old in self._kept:
                    self._keep(new, self._kept.pop(old))
                elif old in self._lost:
                    del self._lost[old]
                    self._lost[new] = None

    def copy(self, original: Callable[..., Any], src: Any, dst: Any, **options: Any) -> Any:
        """Replace shutil.copyfile, copy and copy2: scripts copy a checkpoint to `model_best.pt`."""
        if not self.has(src):
            return original(src, dst, **options)
        if os.path.isdir(dst):
            dst = os.path.join(dst, os.path.basename(src))
        old, new = os.path.realpath(src), os.path.realpath(dst)
        with self._lock:
            self._dropped.add(new)
            if old in self._kept:
                self._keep(new, self._kept[old])
            else:
                self._kept.pop(new, None)
                self._lost[new] = None
        return dst

    def has(self, path: Any) -> bool:
        """Return whether rank 0 has this file, or will have it, because it was saved here."""
        if not self._kept:  # a quick answer for the many other paths; the last checkpoint is always kept
            return False
        return (found := _find_path(path)) is not None and (found in self._kept or found in self._lost)

    def measure(self, path: Any) -> int | None:
        """Return the size in bytes of the kept copy of this file; None if there is no copy."""
        if not self._kept or (found := _find_path(path)) is None:
            return None
        kept = self._kept.get(found)
        return None if kept is None else len(kept)

    def remove(self, original: Callable[..., None], path: Any, **options: Any) -> None:
        """Replace os.remove: rank 0 removes the file."""
        if (found := _find_path(path)) not in self._dropped:
            original(path, **options)
        elif found is not None:
            with self._lock:
                self._kept.pop(found, None)
                self._lost.pop(found, None)

    def write(self, rank: int) -> None:
        """Write the copies, because every rank writes its own files now; print the paths whose copies are lost."""
        with self._lock:
            kept, self._kept = self._kept, OrderedDict()
            lost, self._lost = self._lost, {}
            self._dropped.clear()
        for path, data in kept.items():
            write_whole(path, data)  # other ranks may write to the same path at the same time
        if lost:
            print(
                f"undertow: rank {rank} has lost what it saved to {', '.join(lost)}: more than "
                f"{MOST_KEPT_BYTES >> 20} MB were saved before the script joined the other workers. Make the optimizer "
                "after joining, or save again",
                file=sys.stderr,
                flush=True,
            )

    def find(self, f: Any) -> Any:
        """Return the object to read from: this rank's own copy, or `f` itself."""
        path = _find_path(f)
        kept = None if path is None else self._kept.get(path)
        return f if kept is None else io.BytesIO(kept)


def _find_path(f: Any) -> str | None:
    return os.path.realpath(os.fspath(f)) if isinstance(f, (str, os.PathLike)) else None
