"""Calls a function as soon as a module has been imported by any code, and never imports the module itself.

A script may set variables that torch reads when it is imported, and a script that never imports torch should not wait
for it.  The module keeps its own loader.  `find_spec` alone does not count as an import.  The traceback of a failed
import shows no frame of undertow, and the import may be tried again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Call `then` once, when the module has been imported; return a function that cancels this."""
    finder = _Finder(name, then)
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, finder)
    return lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None


class _Finder:
    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:  # the finders after this one
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        """Make this loader object also report that it has run the module; a class would report other modules too."""
        if isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return

        def finish() -> None:
            vars(loader).pop("exec_module", None)
            if self in sys.meta_path:  # false if the loader is run a second time
                sys.meta_path.remove(self)
                self._then()

        loader.exec_module = _report(loader.exec_module, finish)


def _report(load: Callable[[ModuleType], None], finish: Callable[[], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        load(module)
        finish()

    # In the traceback of a failed import, Python hides frames with this file name, that of its import machinery.
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    return exec_module
