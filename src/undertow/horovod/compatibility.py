"""Functions that scripts import from `horovod.common.util` and `horovod.torch.mpi_ops`.

There is no compiled extension: `extension_available` returns whether undertow supports a framework, and `mpi_built` and
the like return False.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from undertow.horovod.errors import MissingModule
from undertow.horovod.ops import split_rows

EXTENSIONS = ["tensorflow", "torch", "mxnet"]

T = TypeVar("T")


# What is built


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether `horovod.<ext_base_name>` can be used."""
    return ext_base_name == "torch" and importlib.util.find_spec("torch") is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the framework sees a GPU."""
    if not extension_available(ext_base_name):
        return False
    import torch

    return bool(torch.cuda.is_available())


def _is_not_built(verbose: bool = False) -> bool:
    """Return False: undertow uses none of the libraries that Horovod can be built with."""
    return False


mpi_built = gloo_built = nccl_built = ddl_built = ccl_built = _is_not_built


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raise ImportError for a framework that undertow's Horovod does not support."""
    if not extension_available(ext_name.rpartition(".")[2]):
        raise MissingModule(f"{ext_name}: undertow's Horovod supports PyTorch only, and torch must be installed")


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Accept every version: nothing is compiled against one."""


def get_ext_suffix() -> str:
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Return the path that a compiled extension beside `pkg_path` would have."""
    return os.path.join(os.path.dirname(pkg_path), *args) + get_ext_suffix()


# Helpers

_cache = functools.cache  # private in Horovod too, but scripts import it


@contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Set environment variables inside the block; a variable given as None stays unchanged."""
    given = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """Return a function that maps `op` and the deprecated `average` to the requested operation."""

    def choose(op: Any, average: bool | None) -> Any:
        if op is not None and average is not None:
            raise ValueError("op and average mean the same: give one of them")
        if average is not None:
            warnings.warn("average= is deprecated: use op=", DeprecationWarning, stacklevel=2)
            return reduce_ops.Average if average else reduce_ops.Sum
        return reduce_ops.Average if op is None else op

    return choose


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether the number of ranks is a power of 2, which Horovod's Adasum needs."""
    return num_rank > 0 and num_rank.bit_count() == 1


def split_list(l: Sequence[T], n: int) -> list[Sequence[T]]:  # noqa: E741  # Horovod's name
    """Cut into `n` contiguous lists; if the length does not divide evenly, the first lists have one item more."""
    return [l[rows.start : rows.stop] for rows in split_rows(len(l), n)]


def is_iterable(x: Any) -> bool:
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compare versions; `target` is major.minor.patch."""
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"versions are text such as '1.2.3', not {ver!r} and {target!r}")
    if len(target.split(".")) != 3:
        raise ValueError(f"the version to compare with is {target!r}: give major.minor.patch")
    from torch.torch_version import TorchVersion  # includes packaging, which need not be installed

    return bool(TorchVersion(ver) >= target)
