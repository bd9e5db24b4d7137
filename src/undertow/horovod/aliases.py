"""Makes `horovod` another name of `undertow.horovod`, including all modules below it.

In: imports of `horovod...`.  Out: undertow's own modules, imported on first use, never a second copy of one.
Processes that multiprocessing spawns inherit only `sys.path`: a folder at its end makes them find the same modules.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from undertow.errors import ConfigError
from undertow.horovod.errors import INSTEAD, missing_module

ALIAS = "horovod"
REAL = "undertow.horovod"
IMPORT_PATH = str(Path(__file__).parent / "import_path")


def install() -> None:
    """Let `import horovod` find undertow's modules; a second call changes nothing."""
    loaded = sys.modules.get(ALIAS)
    if loaded is not None and loaded is not sys.modules.get(REAL):
        raise ConfigError(
            "Horovod itself is already imported: call undertow.horovod.install() before the script imports horovod"
        )
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    if IMPORT_PATH not in sys.path:
        sys.path.append(IMPORT_PATH)  # at the end, so that an installed Horovod comes first


def uninstall() -> None:
    """Remove the names; modules that were imported through them stay as they are."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    if IMPORT_PATH in sys.path:
        sys.path.remove(IMPORT_PATH)
    for name in [name for name in sys.modules if name == ALIAS or name.startswith(f"{ALIAS}.")]:
        if sys.modules[name] is sys.modules.get(REAL + name.removeprefix(ALIAS)):
            del sys.modules[name]


def is_installed() -> bool:
    """Return whether Horovod itself is installed."""
    spec = importlib.util.find_spec(ALIAS)
    if spec is None or spec.name == REAL or isinstance(spec.loader, _Loader):
        return False
    return not (spec.origin or "").startswith(IMPORT_PATH)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        below = name.removeprefix("undertow.").removeprefix(f"{ALIAS}.")
        if below in INSTEAD and name in (f"{ALIAS}.{below}", f"{REAL}.{below}"):
            return importlib.util.spec_from_loader(name, _Refusal(below))
        if name != ALIAS and not name.startswith(f"{ALIAS}."):
            return None
        real = REAL + name.removeprefix(ALIAS)
        if real not in sys.modules and importlib.util.find_spec(real) is None:
            return None
        return importlib.util.spec_from_loader(name, _Loader(real))


class _Refusal(Loader):
    """A loader that refuses a module of Horovod that undertow does not have, with advice."""

    def __init__(self, below: str) -> None:
        self._below = below

    def exec_module(self, module: ModuleType) -> None:
        raise missing_module(self._below)


class _Loader(Loader):
    """A loader that returns undertow's module, and keeps the import system from overwriting its spec."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real)
        self._spec, self._loader = module.__spec__, module.__loader__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__, module.__loader__ = self._spec, self._loader


_finder = _Finder()
