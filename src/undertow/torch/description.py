"""What a wrapped module is, in the words of torch's logging data.

In: a wrapper and its module.  Out: facts only: torch's figures of buckets and times belong to its reducer, which is
not used.  Flags are 0 and 1, as in torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

NO_DEVICE = -1  # torch's, for modules on the CPU


def describe_wrapper(wrapper: TorchDistributedDataParallel, *, rank: int, size: int) -> dict[str, Any]:
    """Torch's names for who takes part, what is trained and how it was wrapped."""
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
        "has_sync_bn": int(any(isinstance(part, torch.nn.SyncBatchNorm) for part in module.modules())),
        "num_parameter_tensors": len(trained),
        "total_parameter_size_bytes": sum(tensor.nbytes for tensor in trained),
    }
