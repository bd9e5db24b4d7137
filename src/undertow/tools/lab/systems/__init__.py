"""Systems by name: undertow's, and those that other packages provide.

In: a name.  Out: the system; an unknown name is an error that lists the known ones.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

from undertow.errors import ConfigError
from undertow.tools.lab.systems.others import Ddp, Horovod
from undertow.tools.lab.systems.system import Local, System
from undertow.tools.lab.systems.undertow import MECHANISMS, Undertow

__all__ = ["System", "find_system", "list_systems"]

ENTRY_POINTS = "undertow.systems"

_BUILT_IN: dict[str, Callable[[], System]] = {"ddp": Ddp, "undertow": Undertow, "local": Local, "horovod": Horovod}
_WITHOUT = "-no-"


def find_system(name: str) -> System:
    """Return the system of this name; names such as `undertow-no-slicing` are undertow with a mechanism turned off."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    base, *without = name.split(_WITHOUT)
    if base == "undertow" and without and len(set(without)) == len(without) and set(without) <= set(MECHANISMS):
        return Undertow(without)
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name):
        return _load(point)
    raise ConfigError(f"unknown system {name!r}; known: {', '.join(list_systems())}")


def _load(point: importlib.metadata.EntryPoint) -> System:
    """Load the system of another package."""
    try:
        system: System = point.load()()
    except Exception as error:
        raise ConfigError(f"system {point.name!r} of another package cannot be loaded: {error!r}") from error
    return system


def list_systems() -> list[str]:
    """Return every name that `find_system` knows, including undertow with one mechanism off."""
    others = sorted(point.name for point in importlib.metadata.entry_points(group=ENTRY_POINTS))
    return [*_BUILT_IN, *(f"undertow{_WITHOUT}{mechanism}" for mechanism in MECHANISMS), *others]
