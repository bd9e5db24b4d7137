"""Restarts a script as a single-process script if it requests NCCL on a host without NCCL.

In: a call of `init_process_group`, and the file that makes it.  Out: nothing, or this process is restarted with RANK
hidden from the script.  Only the call itself decides: a script that finally chooses another backend is left alone.
A script is restarted if its syntax tree shows that it can run as a single process where RANK is not set.
"""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from undertow.settings import PlainScripts, Settings

NCCL = "nccl"


def remember_start() -> Callable[[], NoReturn]:
    """Return a function that replaces this process by a new run of the same command, with RANK hidden."""
    command, folder, environment = [sys.executable, *sys.orig_argv[1:]], os.getcwd(), dict(os.environ)

    def restart() -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        os.chdir(folder)
        os.execve(command[0], command, {**environment, "UNDERTOW_PLAIN": PlainScripts.ON.value})

    return restart


def needs_nccl(arguments: Sequence[Any], options: Mapping[str, Any], *, has_device: bool) -> bool:
    """Return whether a call of `init_process_group` requests NCCL alone, without a device for it."""
    backend = options.get("backend", arguments[0] if arguments else None)
    return not has_device and str(backend).lower() == NCCL


def should_restart(settings: Settings, callers: Sequence[str | None]) -> bool:
    """Return whether a script that cannot run here as one of several workers can run as a single process.

    `callers` are the main script and the file that makes the call.  All ranks have to make the same choice, but hosts
    may differ: with several hosts, the user has to choose.
    """
    is_one_host = settings.local_world_size == settings.world_size > 1
    return is_one_host and settings.plain is PlainScripts.AUTO and any(map(has_single_process_branch, callers))


def find_main() -> str | None:
    return getattr(sys.modules.get("__main__"), "__file__", None)


def find_caller() -> str | None:
    """Return the file that calls into torch: the innermost one outside of torch and undertow."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in ("undertow", "torch"):
            return frame.f_code.co_filename
        frame = frame.f_back
    return None


def has_single_process_branch(script: str | None) -> bool:
    """Return whether the script tests for RANK, LOCAL_RANK or WORLD_SIZE and runs as a single process without it."""
    tree = _read_tree(script)
    return tree is not None and any(map(_tests_for_rank, ast.walk(tree)))


def _read_tree(script: str | None) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python has shown the syntax warnings when it compiled the script
            return None if script is None else ast.parse(Path(script).read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None


def _tests_for_rank(node: ast.AST) -> bool:
    """Return whether this is `"RANK" in os.environ`, or a lookup whose default means a single process."""
    if isinstance(node, ast.Compare):
        is_membership = len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn))
        return is_membership and _read_name(node.left) is not None and _ends_with(node.comparators[0], "environ")
    if not isinstance(node, ast.Call) or not node.args:
        return False
    is_lookup = _ends_with(node.func, "getenv") or (
        isinstance(node.func, ast.Attribute) and node.func.attr == "get" and _ends_with(node.func.value, "environ")
    )
    name = _read_name(node.args[0])
    given = [*node.args[1:], *(item.value for item in node.keywords if item.arg == "default")]
    return is_lookup and name is not None and _means_single_process(name, given[0] if given else None)


def _read_name(node: ast.AST) -> str | None:
    """Return the variable of a launcher that this constant names, or None."""
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    return value if value in ("RANK", "LOCAL_RANK", "WORLD_SIZE") else None


def _means_single_process(name: str, default: ast.AST | None) -> bool:
    """Return whether the default is missing, None, a negative number, or a world size of one."""
    if default is None:
        return True
    try:
        value = ast.literal_eval(default)
        number = None if value is None or value == "" else int(value)
    except (ValueError, TypeError, SyntaxError):
        return False
    return number is None or number < 0 or (name == "WORLD_SIZE" and number == 1)


def _ends_with(node: ast.AST, name: str) -> bool:
    return getattr(node, "attr", None) == name or getattr(node, "id", None) == name
