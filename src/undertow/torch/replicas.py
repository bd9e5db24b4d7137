"""The proof that all replicas are bit-identical: digests of every tensor, compared.

In: a module.  Out: one digest for all ranks, or `DriftError` naming the first tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
import torch

from undertow.coordinator.agreement import decode_difference
from undertow.core.dtypes import DType
from undertow.errors import DriftError
from undertow.runtime.group import Group
from undertow.torch.groups import group_for
from undertow.torch.tensors import as_array


def verify_replicas(module: torch.nn.Module, process_group: Any = None) -> str:
    """Compare parameters and buffers of all ranks, bit by bit.

    All ranks must call it.  Returns a digest that is the same everywhere, in hexadecimal.
    """
    tensors = [(name, tensor) for name, tensor in module.state_dict().items() if isinstance(tensor, torch.Tensor)]
    return compare_tensors(tensors, group_for(process_group))


def compare_tensors(named: Iterable[tuple[str, torch.Tensor]], group: Group) -> str:
    """The same for these tensors."""
    digests = [(name, _digest(tensor)) for name, tensor in named]
    reply = group.agree("digest", msgspec.msgpack.encode(digests))
    if reply:
        name, ranks = decode_difference(reply)
        names = ", ".join(map(str, ranks))
        raise DriftError(f"replicas differ: {name!r} on rank {names} is not the same as on the other ranks")
    return hashlib.blake2b(b"".join(digest for _, digest in digests), digest_size=8).hexdigest()


def _digest(tensor: torch.Tensor) -> bytes:
    host = tensor.detach().to("cpu").contiguous()
    return hashlib.blake2b(as_array(host, DType.BYTES).data, digest_size=16).digest()
