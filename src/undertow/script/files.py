"""Checkpoints: the first rank writes them; the others, which hold the same, keep what they would have written.

In: `torch.save` and `torch.load` of a script that knows nothing of ranks, what `os`, `shutil` and `pathlib` do to the
files, and the checkpoints of Lightning and ignite.
Out: one file, whole, from one rank.  A rank that reads back what it would have written reads its own copy: it need not
wait for the first one, nor see its disk.  If the script turns out to know of ranks, every rank writes its own.
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

# The last, the best, and a temporary that becomes one of them; a script that numbers its files reads no old ones back.
LEAST_KEPT = 3
# Others as well, as long as they are small: a script that joins after all has meant each rank to write its own.
MOST_KEPT_BYTES = 64 << 20


class Files:
    """Of one rank that is not the first.  Several threads may save; to look something up takes no lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # of all below
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._dropped: set[str | None] = set()  # all that the first rank has written instead
        self._lost: dict[str, None] = {}  # those of them that are not kept any more

    def save(self, original: Callable[..., None], thing: object, f: Any, *arguments: Any, **options: Any) -> None:
        """As this function of torch's, but for the file.

        One that the script has opened itself is written by every rank: opening it has emptied it.
        """
        path = _find_path(f)
        if path is None:
            original(thing, f, *arguments, **options)
            return
        copy = io.BytesIO()
        original(thing, copy, *arguments, **options)
        with self._lock:
            self._dropped.add(path)
            self._keep(path, copy.getvalue())

    def _keep(self, path: str, data: bytes) -> None:
        self._lost.pop(path, None)
        self._kept[path] = data
        self._kept.move_to_end(path)
        while len(self._kept) > LEAST_KEPT and sum(map(len, self._kept.values())) > MOST_KEPT_BYTES:
            self._lost[self._kept.popitem(last=False)[0]] = None

    def rename(self, original: Callable[..., None], source: Any, target: Any, **options: Any) -> None:
        """As os.replace and os.rename: the last line of who writes a checkpoint under another name first."""
        if (old := _find_path(source)) not in self._dropped:
            original(source, target, **options)
        elif old is not None and (new := _find_path(target)) is not None:
            with self._lock:
                self._dropped.add(new)
                self._lost.pop(new, None)
                if old in self._kept:
                    self._keep(new, self._kept.pop(old))
                elif old in self._lost:
                    del self._lost[old]
                    self._lost[new] = None

    def copy(self, original: Callable[..., Any], source: Any, target: Any, **options: Any) -> Any:
        """As shutil.copyfile, copy and copy2: `model_best.pt` of a checkpoint, which the first rank makes."""
        if not self.has(source):
            return original(source, target, **options)
        if os.path.isdir(target):
            target = os.path.join(target, os.path.basename(source))
        old, new = os.path.realpath(source), os.path.realpath(target)
        with self._lock:
            self._dropped.add(new)
            if old in self._kept:
                self._keep(new, self._kept[old])
            else:
                self._kept.pop(new, None)
                self._lost[new] = None
        return target

    def has(self, path: Any) -> bool:
        """Whether the first rank has this file, or will have it, because it was saved here."""
        if not self._kept:  # at least the last is kept; asked often, and by others
            return False
        return (found := _find_path(path)) is not None and (found in self._kept or found in self._lost)

    def measure(self, path: Any) -> int | None:
        """The bytes of the file that was saved here; None if it is not kept."""
        if not self._kept or (found := _find_path(path)) is None:  # asked often, as `has`
            return None
        kept = self._kept.get(found)
        return None if kept is None else len(kept)

    def remove(self, original: Callable[..., None], path: Any, **options: Any) -> None:
        """As os.remove: the first rank does it."""
        if (found := _find_path(path)) not in self._dropped:
            original(path, **options)
        elif found is not None:
            with self._lock:
                self._kept.pop(found, None)
                self._lost.pop(found, None)

    def write(self, rank: int) -> None:
        """The script has meant every rank to write: write the newest of each path, and name those that are gone."""
        with self._lock:
            kept, self._kept = self._kept, OrderedDict()
            lost, self._lost = self._lost, {}
            self._dropped.clear()
        for path, data in kept.items():
            write_whole(path, data)  # other ranks may write the same path now
        if lost:
            print(
                f"undertow: rank {rank} has not kept what it saved to {', '.join(lost)}: more than "
                f"{MOST_KEPT_BYTES >> 20} MB were saved before the script joined the other workers. Make the optimizer "
                "after that, or save again",
                file=sys.stderr,
                flush=True,
            )

    def find(self, f: Any) -> Any:
        """Where to read: this rank's own copy, or the file itself."""
        path = _find_path(f)
        kept = None if path is None else self._kept.get(path)
        return f if kept is None else io.BytesIO(kept)


def _find_path(f: Any) -> str | None:
    return os.path.realpath(os.fspath(f)) if isinstance(f, (str, os.PathLike)) else None
