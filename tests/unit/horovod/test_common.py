"""Horovod's helper modules, the parameters of its operations, and modules that are missing."""

from __future__ import annotations

import importlib
import inspect
import os
import queue
import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import undertow.horovod
from undertow.errors import UndertowError
from undertow.hidden import HOROVOD
from undertow.horovod.common import exceptions, util
from undertow.horovod.runner.util.threads import execute_function_multithreaded, in_thread
from undertow.horovod.worker_numbers import find_numbers, guess_numbers, is_homogeneous
from undertow.settings import read_settings


@pytest.fixture
def aliases() -> Iterator[None]:
    undertow.horovod.install()
    yield
    undertow.horovod.uninstall()


@pytest.mark.usefixtures("aliases")
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


@pytest.mark.usefixtures("aliases")
def test_hasattr_works_for_the_missing_elastic_module() -> None:
    hvd = importlib.import_module("horovod.torch")
    assert not hasattr(hvd, "elastic")
    with pytest.raises(NotImplementedError, match="elastic training is not supported yet"):
        _ = hvd.elastic


def test_exceptions_keep_their_arguments() -> None:
    assert exceptions.HostsUpdatedInterrupt(skip_sync=True).skip_sync
    mismatch = exceptions.HorovodVersionMismatchError("torch", "2.1", "2.0")
    assert (mismatch.name, mismatch.version, mismatch.installed_version) == ("torch", "2.1", "2.0")
    assert isinstance(mismatch, ImportError)
    assert str(mismatch) == exceptions.get_version_mismatch_message("torch", "2.1", "2.0")


def test_only_torch_is_supported_and_nothing_is_built() -> None:
    assert util.extension_available("torch")
    assert not util.extension_available("tensorflow")
    assert not util.gpu_available("mxnet")
    assert not any((util.mpi_built(), util.gloo_built(verbose=True), util.nccl_built()))
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match="supports PyTorch only"):
        util.check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
    assert util.get_extension_full_path("/a/b.py", "c", "d") == f"/a/c/d{util.get_ext_suffix()}"


def test_variables_are_set_inside_the_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELD", "before")
    monkeypatch.delenv("NEW", raising=False)
    with util.env(HELD="inside", NEW="too", NONE=None):
        assert (os.environ["HELD"], os.environ["NEW"]) == ("inside", "too")
        assert "NONE" not in os.environ
    assert os.environ["HELD"] == "before"
    assert "NEW" not in os.environ


def test_average_and_op_exclude_each_other() -> None:
    choose = util.get_average_backwards_compatibility_fun(SimpleNamespace(Average="mean", Sum="sum"))
    assert (choose(None, None), choose("max", None)) == ("mean", "max")
    with pytest.warns(DeprecationWarning, match="use op="):
        assert choose(None, False) == "sum"
    with pytest.raises(ValueError, match="give one of them"):
        choose("max", True)


def test_small_helpers() -> None:
    assert [number for number in range(9) if util.num_rank_is_power_2(number)] == [1, 2, 4, 8]
    assert util.split_list(l=[1, 2, 3, 4, 5], n=3) == [[1, 2], [3, 4], [5]]
    assert util._cache(lambda: object())() is not None
    assert util.is_iterable("text")
    assert not util.is_iterable(3)
    assert util.is_version_greater_equal_than("1.10.0", "1.9.0")
    assert not util.is_version_greater_equal_than("1.9.0rc1", "1.9.0")
    for wrong in ((1.9, "1.9.0"), ("1.9.0", "1.9")):
        with pytest.raises(ValueError, match="version"):
            util.is_version_greater_equal_than(*wrong)


def test_names_are_in_the_same_modules_as_in_horovod() -> None:
    ops = importlib.import_module("undertow.horovod.torch.mpi_ops")
    hvd = importlib.import_module("undertow.horovod.torch")
    assert (ops.gpu_available, ops.num_rank_is_power_2) == (util.gpu_available, util.num_rank_is_power_2)
    assert ops.check_installed_version("torch", "2.0") is None
    assert ops.handle_average_backwards_compatibility(None, None) is hvd.Average
    assert hvd._check_has_gpu() is util.gpu_available("torch")


def test_a_function_is_called_in_many_threads() -> None:
    assert execute_function_multithreaded(divmod, [[7, 2], [9, 3], [1, 1]], max_concurrent_executions=2) == {
        0: (3, 1),
        1: (3, 0),
        2: (1, 0),
    }
    done = queue.SimpleQueue[int]()
    assert execute_function_multithreaded(done.put, [[3]], block_until_all_done=False) is None
    assert done.get(timeout=60) == 3
    assert execute_function_multithreaded(divmod, []) == {}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_calls_in_threads_that_fail_are_counted() -> None:
    with pytest.raises(RuntimeError, match="1 of 3 calls of divmod failed"):
        execute_function_multithreaded(divmod, [[1, 0], [4, 2], [9, 3]])


def test_a_thread_may_fail_silently() -> None:
    found: list[int] = []
    in_thread(found.append, (3,)).join()
    assert found == [3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_thread(sys.intern, args=(3,), silent=True).join()


@pytest.mark.parametrize(
    ("rank", "local_rank", "numbers"),
    [(0, 0, "0 4 0 2 0 2"), (1, 1, "1 4 1 2 0 2"), (3, 1, "3 4 1 2 1 2")],
)
def test_ranks_and_sizes_become_horovods_variables(rank: int, local_rank: int, numbers: str) -> None:
    settings = read_settings({}, rank=rank, world_size=4, local_rank=local_rank, local_world_size=2)
    assert guess_numbers(settings).to_environment() == dict(zip(HOROVOD, numbers.split(), strict=True))


def test_hosts_are_numbered_in_the_order_of_their_first_ranks() -> None:
    hosts = ["b", "b", "a", "a", "a"]
    found = [find_numbers(read_settings({}, rank=0, world_size=5), rank=rank, hosts=hosts) for rank in range(5)]
    assert [numbers.cross_rank for numbers in found] == [0, 0, 1, 1, 1]
    assert {(numbers.cross_size, numbers.size) for numbers in found} == {(2, 5)}
    assert not is_homogeneous(hosts)
    assert is_homogeneous(hosts[:4])


REDUCING = "average=None name=None op=None prescale_factor=1.0 postscale_factor=1.0 process_set=ALL"
SCATTERING = "op=ReduceOp.Average process_set=ALL prescale_factor=1.0 postscale_factor=1.0"
PARAMETERS = {
    "allreduce": REDUCING.replace("name=None", "name=None compression=NoneCompressor"),
    "allreduce_": REDUCING,
    "allreduce_async": REDUCING,
    "allreduce_async_": REDUCING,
    "reducescatter": f"name=None compression=NoneCompressor {SCATTERING}",
    "reducescatter_async": f"name=None {SCATTERING}",
    "allgather": "name=None process_set=ALL",
    "allgather_async": "name=None process_set=ALL",
}


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_a_form_for_one_tensor_takes_the_arguments_of_the_grouped_one(name: str, parameters: str) -> None:
    hvd = importlib.import_module("undertow.horovod.torch")
    values = {hvd.global_process_set: "ALL", hvd.Compression.none: "NoneCompressor", hvd.Average: "ReduceOp.Average"}
    for title, first in ((name, "tensor"), (f"grouped_{name}", "tensors")):
        operation = getattr(hvd, title)
        signature = inspect.signature(operation)
        own, *others = signature.parameters.values()
        assert [f"{one.name}={values.get(one.default, one.default)}" for one in others] == parameters.split()
        assert (own.name, own.default, {one.kind for one in signature.parameters.values()}) == (
            first,
            inspect.Parameter.empty,
            {inspect.Parameter.POSITIONAL_OR_KEYWORD},
        )
        assert (operation.__name__, operation.__module__) == (title, "undertow.horovod.torch.mpi_ops")
    assert inspect.signature(getattr(hvd, name)).return_annotation == ("int" if "async" in name else "torch.Tensor")
