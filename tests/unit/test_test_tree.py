"""The tree of the tests: what tests share is in tests/support, and tests/unit mirrors the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import undertow

SOURCE = Path(undertow.__file__).parent
TESTS = Path(__file__).parents[1]
MODULES = sorted(TESTS.rglob("*.py"))
UNITS = [path.relative_to(TESTS / "unit") for path in sorted((TESTS / "unit").rglob("test_*.py"))]

# Tests of no single module: they read the whole tree, or damage what all decoders read.
WHOLE_TREE = {
    "test_architecture.py",
    "test_documents.py",
    "test_fuzz.py",
    "test_public_names.py",
    "test_source_claims.py",
    "test_test_tree.py",
    "test_words.py",
}


def find_imported_tests(text: str) -> list[str]:
    """Return the test modules that a source imports, at its top or anywhere in it."""
    nodes = list(ast.walk(ast.parse(text)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [one for one in names if any(part.startswith("test_") for part in one.split("."))]


def test_no_module_imports_a_test_module() -> None:
    found = {str(path.relative_to(TESTS)): find_imported_tests(path.read_text()) for path in MODULES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import tests.unit.test_units",
        "from tests.unit.test_units import spell",
        "from tests.unit import test_units",
        "from . import test_units",
        "def f():\n    from tests.unit.test_units import spell",
    ],
)
def test_an_import_of_a_test_module_is_found(text: str) -> None:
    assert len(find_imported_tests(text)) == 1
    assert find_imported_tests("import torch.testing; from tests.support.workers import run_workers") == []


def find_module(test: Path) -> Path | None:
    """Return the module, or the package, that a file of tests/unit is named after: with or without a topic."""
    words = test.stem.split("_")[1:]
    for length in range(len(words), 0, -1):
        module = SOURCE / test.parent / "_".join(words[:length])
        if module.with_suffix(".py").is_file() or (module / "__init__.py").is_file():
            return module
    return None


def test_a_unit_test_is_named_after_its_module() -> None:
    assert {str(test) for test in UNITS if find_module(test) is None} == WHOLE_TREE


@pytest.mark.parametrize(
    ("test", "module"),
    [
        ("sync/test_order.py", "sync/order"),
        ("engine/core/test_slicing_placement.py", "engine/core/slicing"),
        ("tools/lab/test_systems.py", "tools/lab/systems"),
        ("torch/gates/test_order.py", ""),
        ("sync/test_factor_syncers.py", ""),
        ("sync/test_orders.py", ""),
    ],
)
def test_a_topic_follows_the_name_of_the_module(test: str, module: str) -> None:
    assert find_module(Path(test)) == (SOURCE / module if module else None)
