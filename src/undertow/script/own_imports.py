"""Whether a script has imported undertow itself: then it joins the other workers when it wants to.

In: the namespaces of all modules that are not undertow's, and of the functions that run now.
Out: whether one of them holds a module, function or class of undertow's public interface.
No signs are undertow's `DistributedDataParallel`, which stands in the place of torch's, and `undertow.horovod`, which
`import horovod` finds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType, FunctionType, ModuleType
from typing import Any

_PUBLIC = ("undertow", "undertow.torch", "undertow.kvstore")
_STANDS_IN = ("DistributedDataParallel",)


def imports_undertow() -> bool:
    """Whether the script, or a module of its own, has imported undertow."""
    public = _find_public()
    return any(id(value) in public for space in _find_namespaces() for value in list(space.values()))


def _find_public() -> set[int]:
    """The ids of what a script gets that imports undertow."""
    modules = [sys.modules[name] for name in _PUBLIC if name in sys.modules]
    things: list[Any] = [*modules]
    for module in modules:
        things += [vars(module)[name] for name in _list_names(module) if name not in _STANDS_IN]
    return {id(thing) for thing in things if isinstance(thing, (ModuleType, FunctionType, type))}


def _list_names(module: ModuleType) -> list[str]:
    named = getattr(module, "__all__", None)
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__]
    return [name for name in named or own if name in vars(module)]


def _find_namespaces() -> Iterator[Mapping[str, Any]]:
    for name, module in list(sys.modules.items()):
        if not _is_ours(name) and isinstance(module, ModuleType) and not _is_ours(vars(module).get("__name__")):
            yield vars(module)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not _is_ours(frame.f_globals.get("__name__")):
            yield frame.f_globals
            yield frame.f_locals
        frame = frame.f_back


def _is_ours(name: Any) -> bool:
    return isinstance(name, str) and name.partition(".")[0] == "undertow"
