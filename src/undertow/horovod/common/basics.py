"""Ranks and sizes as methods of an object, which is how Horovod's own frontends use them.

In: the functions of `horovod.torch`.  Out: an object with methods of the same names.
"""

from __future__ import annotations

from typing import Any

from undertow.horovod.ops import ReduceOp
from undertow.horovod.torch import basics


class HorovodBasics:
    """An object with the functions about ranks and sizes; the path of a library is accepted and ignored."""

    Average = ReduceOp.Average
    Sum = ReduceOp.Sum
    Adasum = ReduceOp.Adasum
    Min = ReduceOp.Min
    Max = ReduceOp.Max
    Product = ReduceOp.Product

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        self.pkg_path = pkg_path

    def __getattr__(self, name: str) -> Any:
        if name in basics.__all__:
            return getattr(basics, name)
        raise AttributeError(f"HorovodBasics has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *basics.__all__})
