"""The words of the source: one name per class, docstrings that an engineer understands at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import undertow

ROOT = Path(undertow.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
# Packages whose public classes a reader meets side by side.
NAMED_ONCE = ("engine", "plan", "sync", "crossover", "runtime", "torch", "horovod", "script", "kvstore.py", "errors.py")

Function = ast.FunctionDef | ast.AsyncFunctionDef

# What a docstring never begins with: it would lean on something else, or have no subject.
LEANS = {"of", "as", "so", "same", "also", "too", "this", "these", "those", "it", "its", "that", "who", "whose", "and"}
LEANS |= {
    "in",
    "to",
    "from",
    "by",
    "for",
    "on",
    "with",
    "at",
    "after",
    "before",
    "until",
    "when",
    "while",
    "where",
    "if",
}
NOT_A_NOUN = LEANS | {"whether", "how", "what", "all", "not", "no", "is", "are"}
NOT_A_VERB = LEANS | {"a", "an", "the", "how", "what", "all", "not", "no", "is", "are", "one", "nothing", "everything"}
METAPHORS = re.compile(
    r"\b(whoever|somebody|nobody|anybody|whom|steward|office|guests?|scribe|diary|mourn\w*|parcels?)\b", re.IGNORECASE
)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def list_definitions(text: str) -> Iterator[ast.ClassDef | Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def is_property(node: Function) -> bool:
    decorators = [ast.unparse(one) for one in node.decorator_list]
    return any(one.endswith(("property", ".setter")) for one in decorators)


def find_bad_docstrings(text: str) -> list[str]:
    """Return the names of classes and functions whose docstrings begin in a way that must be read twice."""
    found = []
    for node in list_definitions(text):
        words = re.findall(r"[\w'-]+", (ast.get_docstring(node) or "").lower())[:2]
        if not words:
            continue
        if isinstance(node, ast.ClassDef):
            is_bad = words[0] in NOT_A_NOUN
        elif words[0] == "whether":
            is_bad = False
        else:
            is_bad = words[0] in (LEANS if is_property(node) else NOT_A_VERB)
        if is_bad or words in (["the", "same"], ["so", "many"]):
            found.append(node.name)
    return found


def test_no_two_public_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        if name(path).startswith(NAMED_ONCE):
            for node in list_definitions(path.read_text()):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(name(path))
    assert {one: where for one, where in places.items() if len(where) > 1} == {}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_docstrings_begin_with_a_noun_or_a_verb(path: Path) -> None:
    assert find_bad_docstrings(path.read_text()) == []


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_metaphor_stands_where_a_name_fits(path: Path) -> None:
    assert METAPHORS.findall(path.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        'class A:\n    """Of one worker."""',
        'class A:\n    """What goes to one shard."""',
        'def f():\n    """The rows of a tensor."""',
        'def f():\n    """So many slices there are."""',
        'class A:\n    @property\n    def f(self):\n        """Of the link."""',
        'class A:\n    """The same for bags."""',
    ],
)
def test_a_bad_beginning_is_found(text: str) -> None:
    assert len(find_bad_docstrings(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        'class A:\n    """Turn state of one worker."""',
        'def f():\n    """Whether the link is open."""',
        'def f():\n    """Return the rows of a tensor."""',
        'class A:\n    @property\n    def f(self):\n        """The rate of the link."""',
    ],
)
def test_a_good_beginning_is_not(text: str) -> None:
    assert find_bad_docstrings(text) == []
