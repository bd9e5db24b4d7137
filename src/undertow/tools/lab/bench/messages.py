"""Messages between the bench and its workers: one JSON object per line.

To a worker: an `Assignment` once, then an `Order` for every lap.
From a worker: `Ready` once, then a `Lap` for every order.  A worker that fails exits instead.
"""

from __future__ import annotations

import msgspec


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Task of a worker: a model, and the system under which to train it."""

    model: str
    system: str
    scale: float
    slowdown: float = 1.0
    batch: int | None
    devices: str | None = None  # folder of the devices, one per host, that several jobs share; None: not shared


class Order(msgspec.Struct, frozen=True):
    steps: int


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Report that the worker has connected to the others and wrapped its model."""

    batch: int
    gradient_bytes: int
    compute_s: float | None  # nominal; None if it has to be measured


class Lap(msgspec.Struct, frozen=True, kw_only=True):
    """Report of consecutive steps on one host."""

    ends_s: list[float]  # when each step ended, on the clock that all hosts of a machine share
    cpu_s: float  # of the whole process
    sent_bytes: int | None  # by the system's own count
    digest: int  # of the parameters afterwards: the same on all hosts, or the system is wrong
