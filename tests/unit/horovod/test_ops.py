"""Horovod's frontend without workers: names of modules, reductions, packing."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import undertow.horovod
from undertow.errors import ConfigError
from undertow.horovod import aliases
from undertow.horovod.ops import ReduceOp, divide_whole, pack, read_counts, reduce_arrays, split_rows, unpack

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


def test_blobs_unpack_to_what_was_packed() -> None:
    first, second = np.arange(5, dtype=np.uint8), np.arange(3.0)
    piece = pack([first, second], [5, 3])
    assert read_counts(piece, 2) == [5, 3]
    one, two = unpack(piece, [5, 24], 2)
    assert (one == first).all()
    assert (two.copy().view(np.float64) == second).all()
    assert pack([]).size == 0
    assert unpack(pack([first[:0]]), [0])[0].size == 0
    with pytest.raises(ValueError, match="a blob of 45 bytes instead of 46"):
        unpack(piece, [6, 24], 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8, np.int16])
@pytest.mark.parametrize(("op", "expected"), [("Sum", 12), ("Average", 4), ("Min", 2), ("Max", 6), ("Product", 48)])
def test_reductions(dtype: type, op: str, expected: int) -> None:
    arrays = [np.full(3, value).astype(dtype) for value in (2, 4, 6)]
    result = reduce_arrays(ReduceOp[op], arrays, 3)
    assert result.dtype == np.dtype(dtype)
    assert (result == expected).all()
    assert [array[0] for array in arrays] == [2, 4, 6]


def test_sixteen_bit_floats_are_rounded_once() -> None:
    arrays = [np.full(2, value, np.float16) for value in (2048.0, 1.0, 1.0)]
    assert (reduce_arrays(ReduceOp.Sum, arrays, 3) == 2050).all()  # rounding after each addition would give 2048


def test_a_mean_counts_ranks_without_a_contribution() -> None:
    assert (reduce_arrays(ReduceOp.Average, [np.full(2, 6.0)], 3) == 2).all()


def test_means_of_whole_numbers_are_rounded_towards_zero() -> None:
    assert divide_whole(np.array([-7, 7, 0, 9]), 3).tolist() == [-2, 2, 0, 3]
    assert divide_whole(np.array([250], np.uint8), 3).tolist() == [83]


def test_the_first_ranks_get_the_remaining_rows() -> None:
    assert [len(rows) for rows in split_rows(7, 3)] == [3, 2, 2]
    assert split_rows(2, 3) == [range(0, 1), range(1, 2), range(2, 2)]
    assert split_rows(0, 2) == [range(0, 0), range(0, 0)]
