"""Ranks and sizes as methods of an object, which is how Horovod's own frameworks get at them.

In: the functions of `horovod.torch`.  Out: an object with the same names.
"""

from __future__ import annotations

from typing import Any

from undertow.horovod.ops import ReduceOp
from undertow.horovod.torch import basics

_FUNCTIONS = (
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
)


class HorovodBasics:
    """The functions of `horovod.torch` that say who and where; the path of a library is accepted and not used."""

    Average = ReduceOp.Average
    Sum = ReduceOp.Sum
    Adasum = ReduceOp.Adasum
    Min = ReduceOp.Min
    Max = ReduceOp.Max
    Product = ReduceOp.Product

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        self.pkg_path = pkg_path

    def __getattr__(self, name: str) -> Any:
        if name in _FUNCTIONS:
            return getattr(basics, name)
        raise AttributeError(f"HorovodBasics has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_FUNCTIONS})
