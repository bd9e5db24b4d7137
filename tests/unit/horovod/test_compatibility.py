"""Horovod's functions beside its operations."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from undertow.horovod import compatibility
from undertow.horovod.common import util


def test_only_torch_is_supported_and_nothing_is_built() -> None:
    assert compatibility.extension_available("torch")
    assert not compatibility.extension_available("tensorflow")
    assert not compatibility.gpu_available("mxnet")
    assert not any((compatibility.mpi_built(), compatibility.gloo_built(verbose=True), compatibility.nccl_built()))
    compatibility.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match="supports PyTorch only"):
        compatibility.check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
    assert compatibility.get_extension_full_path("/a/b.py", "c", "d") == f"/a/c/d{compatibility.get_ext_suffix()}"


def test_variables_are_set_inside_the_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELD", "before")
    monkeypatch.delenv("NEW", raising=False)
    with compatibility.env(HELD="inside", NEW="too", NONE=None):
        assert (os.environ["HELD"], os.environ["NEW"]) == ("inside", "too")
        assert "NONE" not in os.environ
    assert os.environ["HELD"] == "before"
    assert "NEW" not in os.environ


def test_average_and_op_exclude_each_other() -> None:
    choose = compatibility.get_average_backwards_compatibility_fun(SimpleNamespace(Average="mean", Sum="sum"))
    assert (choose(None, None), choose("max", None)) == ("mean", "max")
    with pytest.warns(DeprecationWarning, match="use op="):
        assert choose(None, False) == "sum"
    with pytest.raises(ValueError, match="give one of them"):
        choose("max", True)


def test_small_helpers() -> None:
    assert [number for number in range(9) if compatibility.num_rank_is_power_2(number)] == [1, 2, 4, 8]
    assert compatibility.split_list(l=[1, 2, 3, 4, 5], n=3) == [[1, 2], [3, 4], [5]]
    assert compatibility._cache(lambda: object())() is not None
    assert compatibility.is_iterable("text")
    assert not compatibility.is_iterable(3)
    assert compatibility.is_version_greater_equal_than("1.10.0", "1.9.0")
    assert not compatibility.is_version_greater_equal_than("1.9.0rc1", "1.9.0")
    for wrong in ((1.9, "1.9.0"), ("1.9.0", "1.9")):
        with pytest.raises(ValueError, match="version"):
            compatibility.is_version_greater_equal_than(*wrong)


def test_scripts_import_them_from_common_util() -> None:
    assert util.split_list is compatibility.split_list
    assert util._cache is compatibility._cache
