"""Replacements for torch's reducer, which undertow does not use, where frameworks and scripts expect it.

`Reducer` is used by Lightning's manual optimization and Accelerate's `trigger_sync_in_backward`: the next backward is
synchronised.  `ReducerMethods` are the methods of torch's class that configure its reducer: they are refused or have no
effect.  `describe_wrapper` returns torch's logging data, without the reducer's figures about buckets and times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from undertow.torch.ddp.checks import unsupported
from undertow.torch.passes.passes import Passes

NO_DEVICE = -1  # torch's value for modules on the CPU


class Reducer:
    """A stand-in for torch's reducer of one wrapped module."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Make the next backward a synchronised one, whatever its forward requested."""
        self._passes.request(outputs)

    def _rebuild_buckets(self) -> bool:
        return False  # there are none

    def _delay_all_reduce(self) -> None:
        """Do nothing: every backward sends its gradients before it ends."""


class ReducerMethods:
    """A mixin with the methods of torch's class that configure its reducer: they are refused or have no effect."""

    def register_comm_hook(self, state: object, hook: Any) -> NoReturn:
        raise unsupported(
            "communication hooks belong to torch's reducer, which is not used here: leave the hook out. To send fewer "
            "bytes without loss, let the plan choose (UNDERTOW_PLAN); to synchronise less often, use no_sync()"
        )

    def _register_builtin_comm_hook(self, comm_hook_type: object) -> NoReturn:
        self.register_comm_hook(None, comm_hook_type)

    def _register_fused_optim(self, optim: object, *args: Any, **options: Any) -> NoReturn:
        self.register_comm_hook(None, optim)

    def _register_buffer_comm_hook(self, state: object, hook: Any, comm_hook_location: Any = None) -> NoReturn:
        raise unsupported(
            "communication hooks for buffers are not called here: rank 0's buffers are copied to all ranks"
        )

    def _update_process_group(self, new_process_group: Any) -> NoReturn:
        raise unsupported("the process group of a wrapped module cannot be changed: wrap its .module again")

    def _remove_autograd_hooks(self) -> NoReturn:
        raise unsupported("the hooks of a wrapped module cannot be removed: train its .module, or use no_sync()")

    def _set_sparse_metadata(self, global_unique_ids: Any) -> None:
        """Do nothing: undertow needs no metadata to find the rows that any worker has touched."""

    def _set_ddp_sink_clone(self, val: bool) -> None:
        """Do nothing: outputs are never copied."""

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        """Do nothing: torch's statistics are not collected."""


def describe_wrapper(wrapper: TorchDistributedDataParallel, *, rank: int, size: int) -> dict[str, Any]:
    """Return the ranks, parameters and options of a wrapper, under torch's names; flags are 0 and 1, as in torch."""
    module = wrapper.module
    ignored = wrapper.parameters_to_ignore
    trained = [tensor for name, tensor in module.named_parameters() if tensor.requires_grad and name not in ignored]
    return {
        "backend_name": "undertow",
        "world_size": size,
        "rank": rank,
        "module_name": type(module).__name__,
        "device_ids": ", ".join(map(str, wrapper.device_ids or ())),
        "output_device": NO_DEVICE if wrapper.output_device is None else wrapper.output_device,
        "broadcast_buffers": int(wrapper.broadcast_buffers),
        "find_unused_parameters": int(wrapper.find_unused_parameters),
        "gradient_as_bucket_view": int(wrapper.gradient_as_bucket_view),
        "static_graph": int(wrapper.static_graph),
        "has_sync_bn": int(any(isinstance(child, torch.nn.SyncBatchNorm) for child in module.modules())),
        "num_parameter_tensors": len(trained),
        "total_parameter_size_bytes": sum(tensor.nbytes for tensor in trained),
    }
