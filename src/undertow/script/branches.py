"""The distributed branch of a script: which backend it needs, and how the script decides whether to take it.

In: the text of the main script, its arguments.  Out: whether it runs as a single process where RANK is not set, and
whether NCCL is the only backend that it names.  Both by its syntax tree: comments do not count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

NCCL = "nccl"
BACKENDS = frozenset({NCCL, "gloo", "mpi", "ucc", "xccl", "hccl", "cncl", "smddp", "undertow"})
# Configurations that a script is given by their path.
_CONFIGURATIONS = (".py", ".json", ".yaml", ".yml", ".toml", ".cfg", ".ini")
_LARGEST_BYTES = 1 << 20


def needs_nccl(script: str | None, arguments: Sequence[str]) -> bool:
    """Whether the script tests for RANK, runs alone without it, and names no other backend than NCCL with it."""
    tree = _read_tree(script)
    if tree is None or not any(map(_tests_for_rank, ast.walk(tree))):
        return False
    return set(_find_backends([*_find_strings(tree), *_read_arguments(arguments)])) == {NCCL}


def _read_tree(script: str | None) -> ast.Module | None:
    try:
        return None if script is None else ast.parse(Path(script).read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None  # Python will say what is wrong with it


def _tests_for_rank(node: ast.AST) -> bool:
    """Whether this is `"RANK" in os.environ`, or a look at it whose default says that there are no others."""
    if isinstance(node, ast.Compare):
        is_asked = len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn))
        return is_asked and _read_name(node.left) is not None and _ends_with(node.comparators[0], "environ")
    if not isinstance(node, ast.Call) or not node.args:
        return False
    is_look = _ends_with(node.func, "getenv") or (
        isinstance(node.func, ast.Attribute) and node.func.attr == "get" and _ends_with(node.func.value, "environ")
    )
    name = _read_name(node.args[0])
    given = [*node.args[1:], *(item.value for item in node.keywords if item.arg == "default")]
    return is_look and name is not None and _means_alone(name, given[0] if given else None)


def _read_name(node: ast.AST) -> str | None:
    """The variable of a rank that is named here."""
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    return value if value in ("RANK", "LOCAL_RANK", "WORLD_SIZE") else None


def _means_alone(name: str, default: ast.AST | None) -> bool:
    """No default, None or a negative number; a world size of one."""
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


def _find_strings(tree: ast.Module) -> Iterator[str]:
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _read_arguments(arguments: Sequence[str]) -> Iterator[str]:
    """The script's arguments, and the configurations among them."""
    for argument in arguments:
        yield argument
        path = Path(argument.rpartition("=")[2])
        try:
            if path.suffix in _CONFIGURATIONS and path.stat().st_size < _LARGEST_BYTES:
                yield path.read_text(errors="replace")
        except (OSError, ValueError):
            continue


def _find_backends(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for word in re.findall(r"[a-z]+", text.lower()):
            if word in BACKENDS:
                yield word
