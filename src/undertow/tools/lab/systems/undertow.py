"""Undertow itself, complete or with some of its mechanisms turned off, to measure what each contributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from undertow.sizing import UNSLICED_BYTES, Sizes, align
from undertow.tools.lab.systems.system import System

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_LIMITS = ((Sizes().smallest, 1024), (Sizes().largest, 4096))

MECHANISMS = (
    "wait-free",  # gradients are sent while backward still computes
    "slicing",  # large tensors are sent in slices, through all shards
    "gate",  # the next forward pass starts before all gradients have arrived
    "priority",  # what is needed first is sent first, to the shards and back
    "two-way",  # the shards send their results in that order, too
    "hybrid",  # fully connected layers send factors, and embeddings rows, where that is faster
)


class Undertow(System):
    """Undertow as a system; `without` names the mechanisms that are off."""

    # It measures its model in three, plans, detects a new bandwidth, and measures the links again: all within sixteen.
    warm_up_steps = 16

    def __init__(self, without: Sequence[str] = ()) -> None:
        self.without = tuple(without)
        self._model: nn.Module | None = None
        self.name = "-no-".join(["undertow", *without])
        self.about = f"undertow without {' and '.join(without)}" if without else "undertow with everything on"

    def variables(self, *, scale: float, slowdown: float = 1.0) -> Mapping[str, str]:
        # Undertow chooses slices as it does for users, within limits that are scaled.
        smallest, largest = (max(least, align(round(size / scale))) for size, least in _LIMITS)
        priority = "off" if "priority" in self.without else "push" if "two-way" in self.without else "both"
        return {
            "UNDERTOW_SLICE": str(UNSLICED_BYTES) if "slicing" in self.without else "",
            "UNDERTOW_SMALLEST_SLICE": str(smallest),
            "UNDERTOW_LARGEST_SLICE": str(largest),
            "UNDERTOW_SLICE_TIME": str(Sizes().time_s * slowdown),
            "UNDERTOW_WAIT_FREE": "off" if "wait-free" in self.without else "on",
            "UNDERTOW_PRIORITY": priority,
            **({"UNDERTOW_PLAN": "dense"} if "hybrid" in self.without else {}),
        }

    def join(self) -> None:
        import torch.distributed as dist

        import undertow

        if "hybrid" not in self.without:
            dist.init_process_group("gloo")  # makes allreduce available, as in any script written for torch DDP
        undertow.init()

    def wrap(self, model: nn.Module, optimizer: Optimizer, *, scale: float) -> tuple[nn.Module, Optimizer]:
        from undertow.torch import DistributedDataParallel, parallelize

        if "gate" in self.without:
            return DistributedDataParallel(model), optimizer
        # Both optimizers of the bench update each parameter independently.
        self._model, optimizer = parallelize(model, optimizer, separable=True)
        return self._model, optimizer

    def flush(self) -> None:
        from undertow.torch import flush

        if self._model is not None:
            flush(self._model)

    def bytes_sent(self) -> int | None:
        import undertow

        return undertow.bytes_sent()

    def leave(self) -> None:
        import torch.distributed as dist

        import undertow

        undertow.shutdown()
        if dist.is_initialized():
            dist.destroy_process_group()
