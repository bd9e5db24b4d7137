"""The tree shows the architecture: a module imports only from packages below it, even inside functions."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import undertow
from tests.support.tiers import TIERS

SOURCE = Path(undertow.__file__).parent
ROOT = SOURCE.parents[1]

ORDER = [package for tier in TIERS.values() for package in tier]
HEIGHT = {package: height for height, package in enumerate(ORDER)}


def name_module(path: Path) -> str:
    """`engine.core.flow` for undertow/engine/core/flow.py."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_module(path): path for path in sorted(SOURCE.rglob("*.py")) if "import_path" not in path.parts}

NAMES = {f"undertow.{module}" for module in MODULES if module}


def find_package(module: str) -> str | None:
    """The package of `ORDER` that a module belongs to."""
    parts = module.split(".")
    heads = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((head for head in heads if head in HEIGHT), None)


def list_imports(text: str) -> Iterator[str]:
    """Yield every module of undertow that a source imports, at its top or anywhere in it, or names in a string."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found = [f"{node.module}.{name.name}" for name in node.names]
            found = [name if name.removeprefix("undertow.") in MODULES else str(node.module) for name in found]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = [node.value] if node.value in NAMES else []
        else:
            continue
        for name in found:
            if name == "undertow" or name.startswith("undertow."):
                yield name.removeprefix("undertow").removeprefix(".")


def find_upward(module: str, text: str) -> list[str]:
    """What a module imports from packages that stand above its own, or beside it and later."""
    own = find_package(module)
    return [
        imported
        for imported in list_imports(text)
        if find_package(imported) != own
        and HEIGHT[find_package(imported) or ""] > HEIGHT[own or ""]
        and not module.startswith(f"{imported}.")
    ]


def test_every_module_belongs_to_a_package() -> None:
    assert {module for module in MODULES if module and find_package(module) is None} == CONTAINERS


# Packages that only hold others.
CONTAINERS = {"engine", "observe", "tools"}


def test_every_folder_has_a_place_in_the_order() -> None:
    folders = {module for module, path in MODULES.items() if module and path.name == "__init__.py"}
    assert folders - set(ORDER) - CONTAINERS == set()


@pytest.mark.parametrize("package", [*ORDER, *CONTAINERS])
def test_every_package_is_there(package: str) -> None:
    assert package in MODULES


def test_containers_import_nothing() -> None:
    assert [name for name in CONTAINERS if list(list_imports(MODULES[name].read_text()))] == []


@pytest.mark.parametrize("package", ORDER)
def test_imports_point_down(package: str) -> None:
    own = {module: path.read_text() for module, path in MODULES.items() if (find_package(module) or "") == package}
    upward = {
        module: found for module, text in own.items() if module not in CONTAINERS for found in find_upward(module, text)
    }
    assert upward == {}


# The packages that must work with any framework, or none.
WITHOUT_FRAMEWORK = [
    package
    for tier in ("ground", "settings", "engine", "plan", "crossover", "process", "sync")
    for package in TIERS[tier]
]
FRAMEWORKS = {"torch", "tensorflow", "keras", "jax"}


def find_frameworks(text: str) -> set[str]:
    """Return the frameworks that a source imports, at its top or anywhere in it."""
    nodes = list(ast.walk(ast.parse(text)))
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names} & FRAMEWORKS


@pytest.mark.parametrize("package", WITHOUT_FRAMEWORK)
def test_what_no_framework_owns_imports_none(package: str) -> None:
    found = {
        module: find_frameworks(path.read_text()) for module, path in MODULES.items() if find_package(module) == package
    }
    assert {module: frameworks for module, frameworks in found.items() if frameworks} == {}


def test_every_form_of_an_import_of_a_framework_counts() -> None:
    assert find_frameworks("def f():\n    from torch.nn import Linear\n") == {"torch"}
    assert find_frameworks("import torch.distributed as dist, jax") == {"torch", "jax"}
    assert find_frameworks("from undertow.torch import ddp") == set()


def test_every_form_of_an_import_counts() -> None:
    text = "def show():\n    from undertow.observe.live import web\n"
    assert find_upward("engine.client.group", text) == ["observe.live.web"]
    assert find_upward("cli.run", text) == []
    assert find_upward("plan.planner", "import undertow.torch.ddp.wrapper") == ["torch.ddp.wrapper"]
    assert find_upward("engine.core.flow", "from undertow import shutdown") == [""]
    assert find_upward("sync.order", "importlib.import_module('undertow.torch.ddp')") == ["torch.ddp"]
    assert find_upward("engine.wire.loop", "sys.modules.get('undertow.torch')") == ["torch"]


FRONTENDS = [
    package
    for package in ORDER
    if package.partition(".")[0] in ("sync", "torch", "torch_groups", "kvstore", "horovod", "script")
]
# What a frontend takes from the engine beside its interface: the values that it passes and gets.
VALUES = {
    "engine.client.calls.Answer",
    "engine.client.calls.NamedCall",
    "engine.client.discarding.discard_with",
    "engine.client.waiting.Ticket",
    "engine.coordinator.agreement.DIFFERENCE",
    "engine.coordinator.terms.Route",
    "engine.coordinator.terms.Terms",
}
# These make groups: of torch's process groups, and through its rendezvous.
MAKE_GROUPS = {"torch.ranks.process_groups", "torch_groups"}


def find_past_interface(text: str) -> list[str]:
    """Return what a frontend imports from the engine that is neither its interface, nor pure, nor a listed value."""
    froms = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    names = [f"{node.module}.{one.name}".removeprefix("undertow.") for node in froms for one in node.names]
    found = [name for name in (*names, *list_imports(text)) if name.startswith("engine")]
    allowed = ("engine.interface", "engine.core")
    listed = VALUES | {value.rpartition(".")[0] for value in VALUES}
    return [name for name in found if not name.startswith(allowed) and name not in listed]


@pytest.mark.parametrize("package", FRONTENDS)
def test_frontends_use_the_engine_through_its_interface(package: str) -> None:
    own = [module for module in MODULES if find_package(module) == package and module not in MAKE_GROUPS]
    past = {module: find_past_interface(MODULES[module].read_text()) for module in own}
    assert {module: names for module, names in past.items() if names} == {}


def test_a_way_past_the_interface_is_found() -> None:
    assert find_past_interface("from undertow.engine.client.group import ConnectedGroup") != []
    assert find_past_interface("from undertow.engine.wire import loop") != []
    assert find_past_interface("import undertow.engine.client.control") != []
    assert find_past_interface("from undertow.engine.client.waiting import Ticket, Waiters") != []
    assert find_past_interface("from undertow.engine.core.rounds import Op") == []


# Also in the code that is in strings, for other processes.
FROM_IMPORT = re.compile(r"\bfrom undertow((?:\.\w+)*) import +(\([^)]*\)|\w[\w ,]*)")
IMPORT = re.compile(r"\bimport undertow((?:\.\w+)+)")
USERS = [path for folder in ("tests", "benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]


@functools.cache
def list_names(module: str) -> set[str]:
    """Return what a module binds, at its top or anywhere in it."""
    nodes = list(ast.walk(ast.parse(MODULES[module].read_text())))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    aliases = [name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for name in node.names]
    return names | {name.asname or name.name for name in aliases}


def find_dead_imports(text: str) -> list[str]:
    """Return what this text imports from undertow that is not there."""
    dead = [name for name in IMPORT.findall(text) if name[1:] not in MODULES]
    for suffix, listed in FROM_IMPORT.findall(text):
        module = suffix[1:]
        for name in re.findall(r"(\w+)(?: as \w+)?", re.sub(r"#.*", "", listed)):
            whole = f"{module}.{name}".removeprefix(".")
            if whole not in MODULES and (module not in MODULES or name not in list_names(module)):
                dead.append(whole)
    return dead


def test_what_tests_and_examples_import_is_there() -> None:
    dead = {str(path.relative_to(ROOT)): find_dead_imports(path.read_text()) for path in USERS}
    assert {path: names for path, names in dead.items() if names} == {}


@pytest.mark.parametrize(
    "text", ["import {}.nowhere", "from {} import nowhere", "'from {}.plan.plan import (Plan,\nX)'"]
)
def test_an_import_of_nothing_is_found(text: str) -> None:
    assert len(find_dead_imports(text.format("undertow"))) == 1
    assert find_dead_imports("from undertow.plan.plan import Plan as P, read_plan; import undertow.plan") == []
