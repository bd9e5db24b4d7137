"""Claims of the documents about the whole source: which code unpickles, and which reads settings."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import undertow

ROOT = Path(undertow.__file__).parent

# What reads a pickle: by module, its functions and classes.  Collectives of torch for objects unpickle what peers send.
UNPICKLES = {
    **{name: {"load", "loads", "Unpickler"} for name in ("pickle", "_pickle", "cloudpickle", "dill", "marshal")},
    "joblib": {"load"},
    "torch": {"load"},
    "torch.package": {"PackageImporter"},
    "torch.distributed": {
        *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "recv_object_list"),
    },
    "torch.distributed.rpc": {"init_rpc", "rpc_sync", "rpc_async", "remote"},
    "numpy": {"load"},
    "shelve": {"open", "Shelf"},
    "pandas": {"read_pickle"},
    "multiprocessing": {"Pipe", "Queue", "SimpleQueue", "JoinableQueue", "Manager", "Pool"},
    "torch.multiprocessing": {"Queue", "SimpleQueue", "Manager", "Pool"},
    "multiprocessing.connection": {"Client", "Listener", "Connection"},
    "concurrent.futures": {"ProcessPoolExecutor"},
}
# Objects of a Horovod script, and what the workers of `horovod.run` leave in the caller's own folder.
MAY_UNPICKLE = {("horovod/torch/functions.py", "_load"), ("horovod/runner/exchange_folder.py", "ExchangeFolder._read")}
# It looks whether the variable is there, before it may import anything.
MAY_READ_SETTINGS = {("autoload.py", "load")}

# Names of what holds the message of an error, or a part of it.
ERRORS = {"error", "failure", "exception"}
MESSAGES = {"reason", "cause", "complaint", "refusal"}
PATTERNS = {"match", "search", "fullmatch", "findall"}
READERS = PATTERNS | {
    *("startswith", "endswith", "partition", "rpartition", "split", "find", "index", "count"),
    *("removeprefix", "removesuffix"),
}
# Functions with these names return text for people.
DESCRIPTIONS = ("describe", "explain", "name_")
# What looks into words all the same, and why it may.
MAY_READ_MESSAGES = {
    ("tools/faults/scenarios/starts.py", "_check_cause"): "checks that the words for users name the host",
    ("launch/job_file.py", "_name_the_key"): "only the text of msgspec's error names the key of the file",
    ("tools/doctor/collect.py", "list_packages"): "a package's metadata marks the requirements of its extras this way",
    ("tools/faults/scenarios/__init__.py", "Scenario.claim"): "makes a phrase of a docstring",
    ("torch/slots/device.py", "find_processor"): "reads a file of the kernel",
}

Place = tuple[str, str]  # the file, and the function in it


def walk(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield every node with the dotted name of the functions and classes around it."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        inner = f"{scope}.{node.name}".strip(".") if named else scope  # type: ignore[attr-defined]
        yield inner, node
        yield from walk(node, inner)


def find_aliases(tree: ast.AST) -> dict[str, str]:
    """Return what each imported name stands for."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {name.asname: name.name for name in node.names if name.asname}
        elif isinstance(node, ast.ImportFrom):
            aliases |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    return aliases


def spell(node: ast.AST) -> str:
    """Return a dotted name as it is written; a call in it stands for the module that it imports, if it does."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{spell(node.value)}.{node.attr}"
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        return str(node.args[0].value)  # importlib.import_module("pickle"), __import__("pickle")
    return ""


def find_unpickling(source: str) -> list[str]:
    """Return the functions in which something is unpickled, or could be: a name that unpickles is mentioned."""
    tree = ast.parse(source)
    aliases, found = find_aliases(tree), []
    for scope, node in walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, (ast.Attribute, ast.Name)):
            first, dot, rest = spell(node).partition(".")
            names = [aliases.get(first, first) + dot + rest]
        else:
            continue
        for name in names:
            module, _, last = name.rpartition(".")
            if last in UNPICKLES.get(module, ()) or (last == "loads" and "pickle" in module.lower()):
                found.append(scope)
    return found


def find_readers(source: str) -> list[str]:
    """Return the functions that look up a variable `UNDERTOW_*` by its name."""
    found = []
    for scope, node in walk(ast.parse(source)):
        looked_up: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            looked_up = [node.slice]
        elif isinstance(node, ast.Call) and spell(node.func).rpartition(".")[2] in ("get", "getenv", "setdefault"):
            looked_up = node.args[:1]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            looked_up = [node.left]
        found += [scope for name in looked_up if isinstance(name, ast.Constant) and is_setting(name.value)]
    return found


def find_decisions(source: str) -> list[str]:
    """Return the functions that compare or search the message of an error, or look for words in any text."""
    tree, found = ast.parse(source), []
    caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}

    def is_error(node: ast.AST) -> bool:
        return spell(node).rpartition(".")[2] in ERRORS | caught

    def holds_message(node: ast.AST) -> bool:
        if isinstance(node, (ast.Name, ast.Attribute)) and spell(node).rpartition(".")[2] in MESSAGES:
            return True
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and spell(part.func) in ("str", "repr") and is_error(part.args[0]):
                return True
            if isinstance(part, ast.Call) and spell(part.func).rpartition(".")[2].lstrip("_").startswith(DESCRIPTIONS):
                return True
            if isinstance(part, ast.FormattedValue) and is_error(part.value):
                return True
            if isinstance(part, ast.Attribute) and part.attr in ("args", "message") and is_error(part.value):
                return True
        return False

    for scope, node in walk(tree):
        read: list[ast.expr] = []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            read = node.comparators
            found += [scope] * holds_words(node.left)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            read = sides if any(map(is_text, sides)) else []
            found += [scope] * any(map(holds_words, sides))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READERS:
            read = [node.func.value, *node.args]
            found += [scope] * (node.func.attr not in PATTERNS and any(map(holds_words, node.args)))
        elif isinstance(node, ast.Match):
            patterns = (part for case in node.cases for part in ast.walk(case.pattern))
            read = [node.subject] if any(map(is_text, patterns)) else []
        found += [scope for each in read if holds_message(each)]
    return found


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


def holds_words(node: ast.AST) -> bool:
    """Whether there is a constant text with a space and a letter, as in sentences and not in names."""
    texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return any(" " in text and re.search("[a-z]", text, re.IGNORECASE) for text in texts)


def is_setting(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("UNDERTOW_[A-Z_]+", value) is not None


def list_places(find: Callable[[str], list[str]]) -> set[Place]:
    """Return where in the package something is found."""
    files = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.py")}
    assert len(files) > 100
    return {(name, scope) for name, source in files.items() for scope in find(source)}


def test_nothing_is_unpickled_except_at_the_request_of_a_horovod_script() -> None:
    assert list_places(find_unpickling) == MAY_UNPICKLE


def test_what_peers_send_is_unpickled_for_two_functions_only() -> None:
    """And for `broadcast_optimizer_state`, which calls one of them."""
    source = (ROOT / "horovod/torch/functions.py").read_text()
    calls = {
        scope.partition(".")[0]
        for scope, node in walk(ast.parse(source))
        if isinstance(node, ast.Name) and node.id == "_load"
    }
    assert calls == {"broadcast_object", "allgather_object"}


def test_settings_are_read_in_one_module() -> None:
    assert list_places(find_readers) == MAY_READ_SETTINGS


def test_nothing_is_decided_by_the_text_of_a_message() -> None:
    assert list_places(find_decisions) == MAY_READ_MESSAGES.keys()


@pytest.mark.parametrize(
    "line",
    [
        "'(seen by' in reason",
        "'rank' in str(error)",
        "'rank' in str(self.error)",
        "'rank' not in f'{error}'",
        "error.args[0] == 'gone'",
        "error.message.startswith('rank')",
        "re.search('rank [0-9]', str(error))",
        "PATTERN.match(str(group.error))",
        "str(failure).partition(';')[0]",
        "lost.reason.endswith('closed')",
        "loss.cause != 'it closed'",
        "try: pass\nexcept OSError as problem: 'in use' in str(problem)",
        "match str(error):\n  case 'gone': pass",
        "describe_code(code).partition(';')",
        "'HEARTBEAT' in self._describe(event)",
        "' HEARTBEAT ' in line",
        "line.startswith(('it is ', 'the engine of '))",
        "span.reason == 'a gate'",
        "kind == 'the end of backward'",
    ],
)
def test_a_decision_by_a_message_is_found_however_it_is_written(line: str) -> None:
    assert find_decisions(line)


@pytest.mark.parametrize(
    "line",
    [
        *("error.rank == 3", "isinstance(error, PeerLost)", "print(str(error))", "reason != ''"),
        *("name == 'conv1.weight'", "line.partition(': ')", "re.search('MemTotal: (.+) kB', text)"),
    ],
)
def test_facts_of_an_error_may_decide(line: str) -> None:
    assert not find_decisions(line)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle; pickle.loads(x)",
        "import pickle as p; p.load(x)",
        "from pickle import loads; loads(x)",
        "from pickle import loads as read",
        "import torch; torch.load(x)",
        "import torch.distributed as dist; dist.all_gather_object(x, y)",
        "from torch import distributed as dist; dist.broadcast_object_list(x)",
        "import importlib; importlib.import_module('cloudpickle').loads(x)",
        "from multiprocessing.connection import Client",
        "_pickler.loads(x)",
        "import pickle; read = pickle.loads",
    ],
)
def test_unpickling_is_found_however_it_is_written(line: str) -> None:
    assert find_unpickling(line)


@pytest.mark.parametrize("line", ["import pickle; pickle.dumps(x)", "import json; json.loads(x)", "import torch"])
def test_what_does_not_unpickle_is_left_alone(line: str) -> None:
    assert not find_unpickling(line)


@pytest.mark.parametrize(
    "line",
    [
        "environ.get('UNDERTOW_SHARE')",
        "os.environ['UNDERTOW_SHARE']",
        "os.getenv('UNDERTOW_SHARE', '')",
        "'UNDERTOW_SHARE' in os.environ",
    ],
)
def test_a_reader_of_settings_is_found_however_it_is_written(line: str) -> None:
    assert find_readers(line) == [""]
    assert not find_readers("made['UNDERTOW_SHARE'] = '1'; {'UNDERTOW_SHARE': '1'}; environ.pop('UNDERTOW_SHARE')")


def test_the_page_on_horovod_names_what_unpickles() -> None:
    document = (ROOT.parents[1] / "docs" / "horovod.md").read_text()
    [point] = [point for point in document.split("\n- ") if "unpickle what other ranks send, as with Horovod" in point]
    for name in ("broadcast_object", "allgather_object", "broadcast_optimizer_state"):
        assert f"`{name}`" in point


@pytest.mark.parametrize("package", ["engine", "plan", "sync"])
def test_what_is_below_the_frontends_does_not_speak_of_their_functions(package: str) -> None:
    """A frontend's users read these texts, and each framework has its own names."""
    words = re.compile(r"\bundertow\.(torch|keras)\b|\btorch\.\w|init_process_group")
    found = []
    for path in (ROOT / package).rglob("*.py"):
        tree = ast.parse(path.read_text())
        statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in statements)
        found += [(path.name, node.value) for node in texts if isinstance(node.value, str) and words.search(node.value)]
    assert found == []


def test_three_modules_of_the_fault_driver_look_inside_of_a_group() -> None:
    inside = re.compile(r"\b(group|exchange(\.\w+)?|control|outbox)\._|vars\(.*\bgroup\b")
    files = (ROOT / "tools" / "faults").rglob("*.py")
    assert {path.name for path in files if inside.search(path.read_text())} == {"worker.py", "discards.py", "gates.py"}
