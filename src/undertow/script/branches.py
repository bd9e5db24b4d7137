"""Scripts that run as a single process where RANK is not set, and otherwise as one worker of several.

In: the text of a script.  Out: whether it has such a branch, by its syntax tree: comments do not count.
"""

from __future__ import annotations

import ast
import warnings
from pathlib import Path


def runs_alone(script: str | None) -> bool:
    """Whether the script tests for RANK or its relatives, and goes on as a single process without them."""
    tree = _read_tree(script)
    return tree is not None and any(map(_tests_for_rank, ast.walk(tree)))


def _read_tree(script: str | None) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its syntax: Python has said them
            return None if script is None else ast.parse(Path(script).read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None


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
