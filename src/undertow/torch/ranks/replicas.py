"""Verification that all replicas are bit-identical: all ranks compare digests of every tensor.

In: a module.  Out: one digest for all ranks, or `DriftError` naming the first tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
import torch

from undertow.engine.coordinator.agreement import DIFFERENCE
from undertow.engine.core.dtypes import DType
from undertow.engine.interface import Group
from undertow.errors import DriftError, name_ranks
from undertow.torch.ranks.process_groups import group_for
from undertow.torch.slots.tensors import as_array


def verify_replicas(module: torch.nn.Module, process_group: Any = None) -> str:
    """Compare the parameters and buffers of all ranks, bit by bit.

    All ranks must call this function.  Returns a digest of all tensors, in hexadecimal, the same on all ranks.
    """
    tensors = [(name, tensor) for name, tensor in module.state_dict().items() if isinstance(tensor, torch.Tensor)]
    return compare_tensors(tensors, group_for(process_group))


def compare_tensors(named: Iterable[tuple[str, torch.Tensor]], group: Group) -> str:
    """Compare these tensors on all ranks, bit by bit.  Returns a digest of all of them, in hexadecimal."""
    digests = [(name, _digest(tensor)) for name, tensor in named]
    reply = group.agree("digest", msgspec.msgpack.encode(digests))
    if reply:
        name, places = DIFFERENCE.decode(reply)
        ranks = [group.shape.name(rank) for rank in places]
        raise DriftError(
            f"replicas differ: {name!r} on {name_ranks(ranks)} is not the same as on the other ranks",
            tensor=name,
            ranks=ranks,
        )
    return hashlib.blake2b(b"".join(digest for _, digest in digests), digest_size=8).hexdigest()


def _digest(tensor: torch.Tensor) -> bytes:
    host = tensor.detach().to("cpu").contiguous()
    return hashlib.blake2b(as_array(host, DType.BYTES).data, digest_size=16).digest()
