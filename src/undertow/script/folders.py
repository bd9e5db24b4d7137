"""Folders that every rank of a single-process script makes: the first to come does, and the others find them.

In: paths of which the script was told that nothing is there, and the folders that it makes.
Out: one folder.  `if not os.path.exists(path): os.mkdir(path)` is right in one process; of several, one would fail.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

MOST_ABSENT = 1000  # paths; a script may ask for a million files that are not there


class Folders:
    """What this rank was told is not there, and may be made by another before it does."""

    def __init__(self) -> None:
        self._absent: OrderedDict[str, None] = OrderedDict()

    def note_absent(self, path: Any) -> None:
        """The script has asked for this path, and nothing is there."""
        if (found := _find_path(path)) is not None:
            self._absent[found] = None
            if len(self._absent) > MOST_ABSENT:
                self._absent.popitem(last=False)

    def make(self, original: Callable[..., None], path: Any, *arguments: Any, **options: Any) -> None:
        """As os.mkdir, but that another rank may have made the folder since the script has asked for it."""
        found = _find_path(path)
        was_absent = found in self._absent
        if found is not None:
            self._absent.pop(found, None)
        try:
            original(path, *arguments, **options)
        except FileExistsError:
            if not (was_absent and os.path.isdir(path)):
                raise


def _find_path(path: Any) -> str | None:
    return os.path.abspath(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else None
