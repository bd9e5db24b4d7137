"""Sends parameters, optimizer states and arbitrary objects from one rank to all.

In: the root's values.  Out: the same values on all ranks.  Objects are pickled, as in Horovod.  Only three functions in
undertow unpickle bytes from a peer: `broadcast_object`, `allgather_object` and `broadcast_optimizer_state`.  The bytes
come from workers that know the job's secret, and only when the script calls one of these functions.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from undertow.engine.coordinator.terms import Route, Terms
from undertow.engine.core.rounds import Array
from undertow.horovod.errors import BadCall
from undertow.horovod.torch import basics, handles
from undertow.horovod.torch.moving import find_root, start_broadcast
from undertow.horovod.torch.process_sets import global_process_set, group_of
from undertow.horovod.torch.transfers import Blobs, exchange_blobs


def broadcast_parameters(params: Any, root_rank: int, process_set: Any = global_process_set) -> None:
    """Copy the root's values to all ranks; `params` is a state_dict, or a list of tensors or (name, tensor) pairs."""
    group = group_of(process_set)
    named = _name_tensors(params)
    if named:
        tensors = [tensor for _, tensor in named]
        handles.synchronize(start_broadcast(named, tensors, root_rank, name="parameters", group=group))


def _name_tensors(params: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        # A state_dict may hold values that are not tensors; these are left alone.
        return sorted((str(name), value) for name, value in params.items() if isinstance(value, torch.Tensor))
    if isinstance(params, (str, torch.Tensor)) or not isinstance(params, Iterable):
        raise BadCall(f"broadcast_parameters takes a state_dict or a list of parameters, not {type(params).__name__}")
    items = [item if isinstance(item, tuple) else (str(index), item) for index, item in enumerate(params)]
    return [(name, tensor) for name, tensor in items if tensor is not None]


class _Slot(NamedTuple):
    """A placeholder for a tensor that is sent separately."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None, process_set: Any = global_process_set
) -> None:
    """Copy the root's state and hyperparameters to all ranks, whether or not the other ranks have any state yet.

    Tensors are sent as bytes; the rest is an object, which the other ranks unpickle (see `broadcast_object`).
    Unlike Horovod, this makes no step to create a state, so weights never decay here.  As in Horovod, the parameters
    of an optimizer without state have zero gradients afterwards: scripts read them before the first backward pass.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise BadCall("the state of LBFGS cannot be broadcast, because it contains lists. Broadcast it as an object")
    is_root = basics.rank() == root_rank
    own = optimizer.state_dict()
    slotted = {index: {key: _slot(value) for key, value in state.items()} for index, state in own["state"].items()}
    sent = {"state": slotted, "param_groups": own["param_groups"]} if is_root else None
    state = broadcast_object(sent, root_rank, name="optimizer_state", process_set=process_set)
    named = []
    for index, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, _Slot):
                entries[key] = own["state"][index][key] if is_root else torch.empty(value.shape, dtype=value.dtype)
                named.append((f"{key} of {index}", entries[key]))
    if named:
        tensors = [tensor for _, tensor in named]
        group = group_of(process_set)
        handles.synchronize(start_broadcast(named, tensors, root_rank, name="optimizer_state", group=group))
    if not own["state"]:
        _fill_gradients(optimizer)
    if not is_root:
        optimizer.load_state_dict(state)


def _fill_gradients(optimizer: torch.optim.Optimizer) -> None:
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def _slot(value: Any) -> Any:
    return _Slot(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Return the root's object; the other ranks unpickle a copy from the root's bytes."""
    group = group_of(process_set)
    root = find_root(root_rank, group)
    is_root = group.rank == root

    def read(blobs: Blobs) -> Any:
        return obj if is_root else _load(blobs[root])

    terms = Terms("broadcast_object", Route.EVERYONE, details=f"root {root_rank}")
    return handles.synchronize(exchange_blobs(name, terms, [_dump(obj) if is_root else None], read, group=group))


def allgather_object(obj: Any, name: str | None = None, process_set: Any = global_process_set) -> list[Any]:
    """Return the objects of all ranks in rank order, each unpickled from that rank's bytes."""

    def read(blobs: Blobs) -> list[Any]:
        return [_load(blob) for blob in blobs]

    terms = Terms("allgather_object", Route.EVERYONE)
    handle = exchange_blobs(name, terms, [_dump(obj)], read, group=group_of(process_set))
    gathered: list[Any] = handles.synchronize(handle)
    return gathered


def _dump(obj: Any) -> Array:
    return np.frombuffer(pickle.dumps(obj), np.uint8)


def _load(blob: Array | None) -> Any:
    assert blob is not None
    return pickle.loads(blob.tobytes())  # noqa: S301  # from a worker that knows the job's secret, as in Horovod
