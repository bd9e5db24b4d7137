"""A script's text and the state of its process show whether it knows of ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import undertow as _undertow
import undertow.horovod
import undertow.kvstore
import undertow.torch
from undertow.script import awareness
from undertow.script.awareness import find_module_file, has_joined, mentions_horovod, mentions_ranks
from undertow.torch.ddp.wrapper import DistributedDataParallel

UNDERTOW = _undertow
del undertow, _undertow


@pytest.mark.parametrize(
    "text",
    [
        "rank = int(os.environ['RANK'])",
        "parser.add_argument('--local_rank')",
        "import torch.distributed as dist",
        "from torch.nn.parallel import DistributedDataParallel as DDP",
        "from accelerate import Accelerator",
        "import horovod.torch as hvd",
        "import undertow",
        "os.environ['HOROVOD_LOCAL_RANK']",
        "def setup(world_size):",
        "# Start it with: undertow\nname = '#'; import horovod",
        "parser.add_argument(\n    '--local_rank'\n)",
    ],
)
def test_these_texts_mention_ranks(text: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    assert mentions_ranks(str(script))


@pytest.mark.parametrize(
    "text",
    [
        *("", "import torch", "FRANK = 1", "ranking = 2", "print('rank of a matrix')", "accelerated = lightning_fast"),
        '"""Start it with: undertow run -n 4 train.py."""\nimport torch',
        'def train():\n    """Train without torch.distributed, \\d.\n\n    RANK is not read.\n    """',
        "x = 1  # one day with horovod\n'world_size is a word in a statement without effect'",
    ],
)
def test_these_texts_do_not_mention_ranks(text: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    assert not mentions_ranks(str(script))


@pytest.mark.parametrize(
    ("text", "speaks"),
    [
        ("import horovod.torch as hvd", True),
        ("if 'HOROVOD_RANK' in os.environ:", True),
        ("# horovod one day", False),
        ("rank = int(os.environ['RANK'])", False),
    ],
)
def test_scripts_that_mention_horovod_are_found(text: str, speaks: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    assert mentions_horovod(str(script)) is speaks
    assert not mentions_horovod(None)
    assert not mentions_horovod(str(tmp_path))


def test_binary_files_are_searched_too(tmp_path: Path) -> None:
    script = tmp_path / "script.pyc"
    script.write_bytes(b"\xff\x00RANK\x00")
    assert mentions_ranks(str(script))


def test_an_unreadable_script_counts_as_mentioning_ranks(tmp_path: Path) -> None:
    assert mentions_ranks(None)
    assert mentions_ranks(str(tmp_path / "nothing.py"))
    assert mentions_ranks(str(tmp_path))


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Simulate a process that has imported none of these modules."""
    for name in ("torch.distributed", "horovod.torch", "undertow.runtime.process"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return monkeypatch


def distributed(*, available: bool, initialized: bool) -> SimpleNamespace:
    def is_initialized() -> bool:
        assert available, "a torch without it has no such function"
        return initialized

    return SimpleNamespace(is_available=lambda: available, is_initialized=is_initialized)


@pytest.mark.parametrize(("available", "initialized"), [(False, False), (True, False), (True, True)])
def test_a_process_group_counts_as_joined(modules: pytest.MonkeyPatch, available: bool, initialized: bool) -> None:
    modules.setitem(sys.modules, "torch.distributed", distributed(available=available, initialized=initialized))
    assert has_joined() is initialized


@pytest.mark.parametrize("is_initialized", [False, True])
def test_undertow_init_counts_as_joined(modules: pytest.MonkeyPatch, is_initialized: bool) -> None:
    process = SimpleNamespace(is_initialized=lambda: is_initialized)
    modules.setitem(sys.modules, "undertow.runtime.process", process)
    assert has_joined() is is_initialized


@pytest.mark.parametrize("is_initialized", [False, True])
def test_an_initialised_horovod_counts_as_joined(modules: pytest.MonkeyPatch, is_initialized: bool) -> None:
    modules.setitem(sys.modules, "horovod.torch", SimpleNamespace(is_initialized=lambda: is_initialized))
    assert has_joined() is is_initialized


def test_importing_horovod_does_not_count_as_joined(modules: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise ImportError("Horovod was built without torch")

    modules.setitem(sys.modules, "horovod.torch", SimpleNamespace())
    assert not has_joined()
    modules.setitem(sys.modules, "horovod.torch", SimpleNamespace(is_initialized=fail))
    assert not has_joined()


def test_a_modules_file_is_found_where_python_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg" / "inner").mkdir(parents=True)
    (tmp_path / "pkg" / "train.py").touch()
    (tmp_path / "pkg" / "inner" / "__main__.py").touch()
    assert find_module_file("pkg.train") == str(tmp_path / "pkg" / "train.py")
    assert find_module_file("pkg.inner") == str(tmp_path / "pkg" / "inner" / "__main__.py")
    assert find_module_file("pkg") is None
    assert find_module_file("json.tool") is None


@pytest.mark.parametrize("text", ["# move this to accelerate one day", "x = 1  # no world_size here"])
def test_comments_do_not_count(text: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{text}\n")
    assert not mentions_ranks(str(script))


def finds(**names: object) -> bool:
    """Return whether an import is found if only a module of the script holds these names."""
    module = ModuleType("script")
    vars(module).update(names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(awareness.sys, "modules", {**OURS, "script": module, "torch": torch})
        patch.setattr(awareness.sys, "_getframe", lambda: None)
        return awareness.imports_undertow()


OURS = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "undertow"}


@pytest.mark.parametrize(
    "thing",
    [
        UNDERTOW,
        UNDERTOW.torch,
        UNDERTOW.kvstore,
        UNDERTOW.init,
        UNDERTOW.PeerLost,
        UNDERTOW.torch.parallelize,
        UNDERTOW.kvstore.create,
    ],
    ids=str,
)
def test_public_names_of_undertow_count_as_imported(thing: object) -> None:
    assert finds(name=thing)


@pytest.mark.parametrize(
    "thing", [None, torch, UNDERTOW.horovod, UNDERTOW.__version__, DistributedDataParallel], ids=str
)
def test_other_names_do_not_count_as_imported(thing: object) -> None:
    assert not finds(name=thing)


def test_a_name_in_a_running_function_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awareness.sys, "modules", dict(OURS))
    monkeypatch.delitem(globals(), "UNDERTOW")

    def look() -> bool:
        return awareness.imports_undertow()

    def train() -> bool:
        import undertow

        assert undertow
        return look()

    assert train()
