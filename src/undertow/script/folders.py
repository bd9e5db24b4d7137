"""Folders that every rank of a single-process script creates: the first rank creates them, the others do not fail.

In: paths that the script has looked for and not found, and the folders that it creates.
Out: one folder.  `if not os.path.exists(path): os.mkdir(path)` works in one process; in several, all but one may fail.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

MOST_ABSENT = 1000  # paths; a script may look for a million files that do not exist


class Folders:
    """The paths that this rank has not found, and that another rank may have created since."""

    def __init__(self) -> None:
        self._absent: OrderedDict[str, None] = OrderedDict()

    def note_absent(self, path: Any) -> None:
        """Note that the script has looked for this path and found nothing."""
        if (found := _find_path(path)) is not None:
            self._absent[found] = None
            if len(self._absent) > MOST_ABSENT:
                self._absent.popitem(last=False)

    def make(self, original: Callable[..., None], path: Any, *arguments: Any, **options: Any) -> None:
        """Create a folder like os.mkdir; it is not an error if another rank has created it since the script looked."""
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
