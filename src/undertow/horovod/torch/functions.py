"""Parameters, optimizer states and any object from one rank to all.

In: what the root has.  Out: the same everywhere.  Objects are pickled, as with Horovod: they come from workers that
know the job's secret, and from nobody else.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from undertow.coordinator.terms import Route, Terms
from undertow.core.rounds import Array
from undertow.horovod.errors import BadCall
from undertow.horovod.torch import basics, handles
from undertow.horovod.torch.moving import find_root, start_broadcast
from undertow.horovod.torch.process_sets import global_process_set, group_of
from undertow.horovod.torch.transfers import Gathered


def broadcast_parameters(params: Any, root_rank: int, process_set: Any = global_process_set) -> None:
    """The root's values become everyone's: of a state_dict, or of a list of tensors or of named ones."""
    group = group_of(process_set)
    named = _name_tensors(params)
    if named:
        tensors = [tensor for _, tensor in named]
        handles.synchronize(start_broadcast(named, tensors, root_rank, name="parameters", group=group))


def _name_tensors(params: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        # What a module keeps beside its tensors is its own business.
        return sorted((str(name), value) for name, value in params.items() if isinstance(value, torch.Tensor))
    if isinstance(params, (str, torch.Tensor)) or not isinstance(params, Iterable):
        raise BadCall(f"broadcast_parameters takes a state_dict or a list of parameters, not {type(params).__name__}")
    items = [item if isinstance(item, tuple) else (str(index), item) for index, item in enumerate(params)]
    return [(name, tensor) for name, tensor in items if tensor is not None]


class _Slot(NamedTuple):
    """In place of a tensor that travels for itself."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None, process_set: Any = global_process_set
) -> None:
    """The root's state and hyper-parameters become everyone's, whether others have any state yet or not.

    Unlike with Horovod no step is made to get one, so no weight ever decays here.  As with Horovod, an optimizer that
    has no state finds gradients of zeros afterwards: scripts read them before the first backward pass.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise BadCall("the state of LBFGS cannot be broadcast: it holds lists of its own. Broadcast it as an object")
    is_root = basics.rank() == root_rank
    own = optimizer.state_dict()
    slotted = {index: {key: _slot(value) for key, value in state.items()} for index, state in own["state"].items()}
    told = {"state": slotted, "param_groups": own["param_groups"]} if is_root else None
    state = broadcast_object(told, root_rank, name="optimizer_state", process_set=process_set)
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
    """The root's object; a copy of it everywhere else."""
    group = group_of(process_set)
    place = find_root(root_rank, group)
    is_root = group.rank == place
    transfer = Gathered(group, _dump(obj) if is_root else None)

    def end() -> Any:
        with transfer.received() as pieces:
            result = obj if is_root else _load(pieces[place])
        return result

    terms = Terms("broadcast_object", Route.EVERYONE, details=f"root {root_rank}")
    return handles.synchronize(handles.start("broadcast_object", name, terms, transfer.contribute, end, group=group))


def allgather_object(obj: Any, name: str | None = None, process_set: Any = global_process_set) -> list[Any]:
    """Everyone's object, in rank order."""
    group = group_of(process_set)
    transfer = Gathered(group, _dump(obj))

    def end() -> list[Any]:
        with transfer.received() as pieces:
            result = [_load(piece) for piece in pieces]
        return result

    terms = Terms("allgather_object", Route.EVERYONE)
    handle = handles.start("allgather_object", name, terms, transfer.contribute, end, group=group)
    gathered: list[Any] = handles.synchronize(handle)
    return gathered


def _dump(obj: Any) -> Array:
    return np.frombuffer(pickle.dumps(obj), np.uint8)


def _load(piece: Array | None) -> Any:
    assert piece is not None
    return pickle.loads(piece.tobytes())  # noqa: S301  # of a worker that knows the job's secret, as Horovod has it
