"""Checkpoints: the first rank writes them; the others, which hold the same, keep what they would have written.

In: `torch.save` and `torch.load` of a script that knows nothing of ranks.
Out: one file, whole, from one rank.  A rank that reads back what it would have written reads its own copy: it need not
wait for the first one, nor see its disk.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

# The last and the best; a script that numbers its files does not read old ones back.
MOST_KEPT = 2


class Files:
    """Of one rank that is not the first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str | None, bytes] = OrderedDict()
        self._dropped: set[str | None] = set()  # all that the first rank has written instead

    def save(self, save: Callable[..., None], thing: object, f: Any, *arguments: Any, **options: Any) -> None:
        """As this function of torch's, but for the file.

        One that the script has opened itself is written by every rank: opening it has emptied it.
        """
        path = _find_path(f)
        if path is None:
            save(thing, f, *arguments, **options)
            return
        copy = io.BytesIO()
        save(thing, copy, *arguments, **options)
        self._dropped.add(path)
        self._kept[path] = copy.getvalue()
        self._kept.move_to_end(path)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def rename(self, rename: Callable[..., None], source: Any, target: Any, **options: Any) -> None:
        """As os.replace and os.rename: the last line of who writes a checkpoint under another name first."""
        if (old := _find_path(source)) not in self._dropped:
            rename(source, target, **options)
        elif (new := _find_path(target)) is not None:
            self._dropped.add(new)
            if old in self._kept:
                self._kept[new] = self._kept.pop(old)

    def remove(self, remove: Callable[..., None], path: Any, **options: Any) -> None:
        """As os.remove: the first rank does it."""
        if _find_path(path) not in self._dropped:
            remove(path, **options)

    def find(self, f: Any) -> Any:
        """Where to read: this rank's own copy, or the file itself."""
        path = _find_path(f)
        kept = None if path is None else self._kept.get(path)
        return f if kept is None else io.BytesIO(kept)


def _find_path(f: Any) -> str | None:
    return os.path.realpath(os.fspath(f)) if isinstance(f, (str, os.PathLike)) else None
