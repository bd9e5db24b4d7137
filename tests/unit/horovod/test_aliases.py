"""Names of Horovod lead to our modules and go away again, and modules that are missing say what to do."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import undertow.horovod
from undertow.errors import ConfigError, UndertowError
from undertow.horovod import aliases


@pytest.fixture
def installed() -> Iterator[None]:
    undertow.horovod.install()
    yield
    undertow.horovod.uninstall()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        ("import horovod.torch.elastic", "undertow run"),
        ("from horovod.torch.elastic import TorchState", "elastic training is not supported yet"),
        ("import horovod.torch.elastic.state", "elastic training is not supported yet"),
        ("from horovod.torch import elastic", "Save checkpoints"),
        ("from horovod.common.elastic import run_fn", "elastic training is not supported yet"),
        ("import horovod.tensorflow as hvd", "use horovod.torch"),
        ("import horovod.tensorflow.keras as hvd", "--horovod off"),
        ("import horovod.keras", "use horovod.torch"),
        ("import horovod.mxnet", "use horovod.torch"),
        ("import horovod.spark", "undertow run"),
        ("from horovod.ray import RayExecutor", "undertow run"),
        ("import horovod.data", "DataLoader"),
    ],
)
def test_importing_a_missing_module_raises_advice(statement: str, advice: str) -> None:
    with pytest.raises(ImportError, match=advice) as caught:
        exec(statement, {})
    assert isinstance(caught.value, UndertowError)
    assert not isinstance(caught.value, ModuleNotFoundError)


@pytest.mark.usefixtures("installed")
def test_hasattr_works_for_the_missing_elastic_module() -> None:
    hvd = importlib.import_module("horovod.torch")
    assert not hasattr(hvd, "elastic")
    with pytest.raises(NotImplementedError, match="elastic training is not supported yet"):
        _ = hvd.elastic


ALIASES = """
import sys
import undertow.horovod
assert "torch" not in sys.modules
undertow.horovod.install()
undertow.horovod.install()
import horovod
assert horovod is undertow.horovod and "torch" not in sys.modules
import horovod.torch as hvd
from horovod.torch.mpi_ops import allreduce, Sum
from horovod.torch.compression import Compression
from horovod.torch.functions import broadcast_object
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch import DistributedOptimizer as Same
import undertow.horovod.torch
assert hvd is horovod.torch is undertow.horovod.torch
assert allreduce is hvd.allreduce and Same is DistributedOptimizer and Compression is hvd.Compression
assert hvd.__name__ == hvd.__spec__.name == "undertow.horovod.torch"
import horovod.torch.mpi_ops as ops, undertow.horovod.torch.mpi_ops as real
assert ops is real
assert sorted(hvd.__all__) == sorted(set(hvd.__all__)) and all(hasattr(hvd, name) for name in hvd.__all__)
from horovod.common.exceptions import HorovodInternalError
assert HorovodInternalError is hvd.HorovodInternalError
from horovod.common.process_sets import ProcessSet, add_process_set
assert ProcessSet is hvd.ProcessSet and add_process_set is hvd.add_process_set
from horovod.common.basics import HorovodBasics
assert HorovodBasics(__file__ if "__file__" in globals() else "").mpi_built() is False
import horovod.runner, horovod.runner.util.threads
assert horovod.run is horovod.runner.run
for missing in ("horovod.unheard_of", "horovod.torch.unheard_of", "horovodx"):
    try:
        __import__(missing)
    except ModuleNotFoundError as error:
        assert missing in str(error)
    else:
        raise AssertionError(missing)
undertow.horovod.uninstall()
undertow.horovod.uninstall()
assert not [name for name in sys.modules if name.split(".")[0] == "horovod"]
try:
    import horovod
except ModuleNotFoundError:
    print("gone")
"""


def test_horovod_is_an_alias_of_undertows_modules_until_it_is_removed() -> None:
    done = subprocess.run([sys.executable, "-c", ALIASES], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("gone\n", "")


SPAWNING = """
import multiprocessing, sys
if __name__ == "__main__":
    import undertow.horovod
    before = list(sys.path)
    undertow.horovod.install()
    assert sys.path[:-1] == before  # Horovod itself would come first
import horovod.torch as hvd

def work(queue):
    import undertow.horovod.torch
    queue.put((__name__, hvd is undertow.horovod.torch, sys.modules["horovod"] is undertow.horovod))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.SimpleQueue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    child.join()
    assert child.exitcode == 0
    print(queue.get())
    undertow.horovod.uninstall()
    assert sys.path == before
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_processes_find_the_alias_too(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SPAWNING)
    done = subprocess.run([sys.executable, script, method], capture_output=True, text=True, check=False)
    assert done.stdout == "('__mp_main__', True, True)\n", done.stderr


def test_the_import_path_for_spawned_processes_does_not_count_as_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, aliases.IMPORT_PATH])
    assert not aliases.is_installed()
    undertow.horovod.install()
    assert not aliases.is_installed()
    assert importlib.import_module("horovod") is undertow.horovod
    assert not aliases.is_installed()
    undertow.horovod.uninstall()
    assert aliases.IMPORT_PATH not in sys.path


def test_an_imported_horovod_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", sys)
    with pytest.raises(ConfigError, match="Horovod itself is already imported"):
        undertow.horovod.install()
    undertow.horovod.uninstall()
    assert sys.modules["horovod"] is sys
