"""Determines whether a script knows that it is one of several workers; such a script is left alone.

In: the script's text, before it runs; the state of the process, when it makes its first optimizer.
Out: yes or no.  The text gives a first guess, which decides only which ranks print before the first optimizer, and
whether random numbers are the same on all ranks; the state of the process decides the rest.

A script that has imported undertow joins the other workers itself.  It has imported undertow if one of its namespaces,
or of the functions that are running, holds a module, function or class of undertow's public interface.  Two are
excepted: undertow's `DistributedDataParallel`, which replaces torch's, and `undertow.horovod`, which `import horovod`
finds.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from undertow.torch_groups import has_group_of_one, has_process_group

# Words in scripts that know of ranks: ranks, process groups, and the frameworks that create them.
_MENTIONS = re.compile(
    r"\b(RANK|LOCAL_RANK|WORLD_SIZE|world_size|local_rank|torch\.distributed|init_process_group"
    r"|DistributedDataParallel|DistributedSampler|horovod|hvd|undertow|accelerate|Accelerator|deepspeed|lightning"
    r"|pytorch_lightning|torchelastic|mpi4py|HOROVOD_(?:LOCAL_|CROSS_)?(?:RANK|SIZE))\b"
)
_HOROVOD = re.compile(r"\bhorovod\b|\bHOROVOD_")


# Undertow's modules that a script imports to join the other workers, and names in them that do not count.
_PUBLIC = ("undertow", "undertow.torch", "undertow.kvstore")
_REPLACING = ("DistributedDataParallel",)


def mentions_ranks(script: str | None) -> bool:
    """Return whether the code of the script mentions ranks; True if it cannot be read."""
    code = _read_code(script)
    return code is None or _MENTIONS.search(code) is not None


def mentions_horovod(script: str | None) -> bool:
    return _HOROVOD.search(_read_code(script) or "") is not None


def _read_code(script: str | None) -> str | None:
    """Read the script without comments and docstrings, which may mention what it does not do; None if impossible."""
    if script is None:
        return None
    try:
        source = Path(script).read_bytes()
    except OSError:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value = ast.Constant(None)
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError):
        return source.decode(errors="replace")


def find_module_file(module: str) -> str | None:
    """Find the file of a module below the current folder, without importing anything; None if it is elsewhere."""
    path = os.path.join(os.getcwd(), *module.split("."))
    return next((file for file in (f"{path}.py", os.path.join(path, "__main__.py")) if os.path.isfile(file)), None)


def has_joined() -> bool:
    """Return whether the script has joined other workers, through undertow or otherwise.

    An import alone proves nothing: libraries try `import horovod.torch` to see whether it is installed.
    """
    return _has_undertow() or find_join_call() is not None


def find_join_call() -> str | None:
    """Return the call by which the script has joined other workers without undertow, or None."""
    return "init_process_group" if has_process_group() else "hvd.init()" if _has_horovod() else None


def has_joined_alone() -> bool:
    """Return whether the script has joined only a process group of one process, which some libraries need."""
    return has_group_of_one() and not _has_undertow() and not _has_horovod()


def _has_undertow() -> bool:
    process = sys.modules.get("undertow.runtime.process")
    return process is not None and bool(process.is_initialized())


def _has_horovod() -> bool:
    """Return whether Horovod itself is initialised."""
    module = sys.modules.get("horovod.torch")
    is_initialized = getattr(module, "is_initialized", None)
    if is_initialized is None or module is sys.modules.get("undertow.horovod.torch"):
        return False  # undertow's module of that name: `_has_undertow` covers it
    try:
        return bool(is_initialized())
    except Exception:
        return False  # a Horovod that was built without torch


def imports_undertow() -> bool:
    """Return whether the script, or a module of its own, has imported undertow."""
    public = _find_public()
    return any(id(value) in public for space in _find_namespaces() for value in list(space.values()))


def _find_public() -> set[int]:
    """Return the ids of the public modules, functions and classes of undertow."""
    modules = [sys.modules[name] for name in _PUBLIC if name in sys.modules]
    values: list[Any] = [*modules]
    for module in modules:
        values += [vars(module)[name] for name in _list_names(module) if name not in _REPLACING]
    return {id(value) for value in values if isinstance(value, (ModuleType, FunctionType, type))}


def _list_names(module: ModuleType) -> list[str]:
    exported = getattr(module, "__all__", None)
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return [name for name in exported or own if name in vars(module)]


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
