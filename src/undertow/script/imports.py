"""Something to be done as soon as a module has been imported, by whomever, and not before.

A script may set variables that torch reads when it is imported; and one that never imports it should not wait for it.
Whoever looks at the module finds its own loader; whoever only asks where it is (`find_spec`) has not imported it; an
import that fails shows no frame of ours and may be tried again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Call this once, when the module is there.  Returns what ends the waiting for it."""
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
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:  # those that would be asked without us
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        """It stays what it is, but that this one of its kind also tells us.  A class would tell of other modules."""
        if isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return

        def finish() -> None:
            vars(loader).pop("exec_module", None)
            if self in sys.meta_path:  # not if somebody loads the module twice
                sys.meta_path.remove(self)
                self._then()

        loader.exec_module = _tell(loader.exec_module, finish)


def _tell(load: Callable[[ModuleType], None], finish: Callable[[], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        load(module)
        finish()

    # Python leaves frames of its own import machinery out of the traceback of an import that fails, by their file.
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    return exec_module
