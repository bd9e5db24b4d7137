"""Horovod's operations on tensors stand where Horovod has them, with its parameters."""

from __future__ import annotations

import importlib
import inspect

import pytest

from undertow.horovod.common import util


def test_names_are_in_the_same_modules_as_in_horovod() -> None:
    ops = importlib.import_module("undertow.horovod.torch.mpi_ops")
    hvd = importlib.import_module("undertow.horovod.torch")
    assert (ops.gpu_available, ops.num_rank_is_power_2) == (util.gpu_available, util.num_rank_is_power_2)
    assert ops.check_installed_version("torch", "2.0") is None
    assert ops.handle_average_backwards_compatibility(None, None) is hvd.Average
    assert hvd._check_has_gpu() is util.gpu_available("torch")


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
