"""The first door: torch's DistributedDataParallel, kept to the letter, over our engine.

In: a module, and the user's own training loop.  Out: after `backward()` every `.grad`
is the mean over all workers, and all replicas stay bit-identical.
It subclasses torch's class, so `isinstance` holds, but shares nothing with its reducer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.utils import _to_kwargs
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from undertow.errors import ConfigError
from undertow.plan.coordinator import Coordinator
from undertow.plan.plan import Plan
from undertow.settings import Priority
from undertow.torch.closed import forget_gradients
from undertow.torch.description import describe_wrapper
from undertow.torch.hooks import never_compiled
from undertow.torch.join import Joining, TorchJoinHook
from undertow.torch.overlap import Overlap
from undertow.torch.profiling import Profiling
from undertow.torch.reduced import find_process_group
from undertow.torch.reducer import Reducer
from undertow.torch.synchroniser import Synchroniser

# Accepted, and without effect: they tune torch's buckets, or name the parameters without
# a gradient, which nothing needs here.
_WITHOUT_EFFECT = frozenset(
    {
        "bucket_cap_mb",
        "bucket_cap_mb_list",
        "batched_grad_copy",
        "find_unused_parameters",
        "check_reduction",
        "gradient_as_bucket_view",
        "static_graph",
        "skip_all_reduce_unused_params",
    }
)
_BROADCAST_BUCKET_BYTES = 250 * 1024 * 1024  # torch's, for code that hands it on to torch's own functions
_IMPOSSIBLE = {
    "mixed_precision": "compute under torch.autocast, or cast the module with .bfloat16() before wrapping it",
    "delay_all_reduce_named_params": "all gradients are sent as soon as they exist",
    "param_to_hook_all_reduce": "all gradients are sent as soon as they exist",
    "device_mesh": "give process_group=device_mesh.get_group(NAME), with the name of its data-parallel dimension",
}


class NothingToTrain(ConfigError, RuntimeError):
    """No parameter of a module can be trained.  A RuntimeError too, because torch raises one."""


class Uninitialized(ConfigError, RuntimeError):
    """A parameter of a module has no shape yet.  A RuntimeError too, because torch raises one."""


class DistributedDataParallel(TorchDistributedDataParallel):
    """Wraps a module so that `backward()` leaves the mean gradient of all workers.

    Takes torch's arguments, by position or by name.  `plan` says which way gradients travel: the name of a
    policy, a plan or its file; else `UNDERTOW_PLAN` does.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        *,
        forward_sync_buffers: bool | None = None,
        plan: str | os.PathLike[str] | Plan | None = None,
        **options: Any,
    ) -> None:
        torch.nn.Module.__init__(self)
        Joinable.__init__(self)
        _check_options(options)
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        # First of all, as torch has it: scripts catch its error for models that they give device_ids as ever.
        _check_trainable(module, self.parameters_to_ignore)
        _check_module(module, device_ids, output_device)
        self.module = module
        self.device_ids = [getattr(device, "index", device) for device in device_ids] if device_ids else None
        self.output_device = output_device
        self.dim = dim
        self.process_group = self._given_group = process_group
        self.broadcast_bucket_size = _BROADCAST_BUCKET_BYTES
        self.plan = plan
        self.find_unused_parameters = bool(options.get("find_unused_parameters"))
        self.static_graph = bool(options.get("static_graph"))
        self.gradient_as_bucket_view = bool(options.get("gradient_as_bucket_view"))
        # As torch has it: the newer argument wins, and leaves the first copy alone.
        copies_buffers = forward_sync_buffers is not None or broadcast_buffers is not False
        self.forward_sync_buffers = copies_buffers if forward_sync_buffers is None else forward_sync_buffers
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        _check_steps(module, self.parameters_to_ignore)
        self._has_trained = False
        self._has_buffers = any(name not in self.parameters_to_ignore for name, _ in module.named_buffers())
        self._joining: Joining | None = None
        self._overlap: Overlap | None = None
        self._synchroniser: Synchroniser | None = None
        synchroniser = self._connect()
        if init_sync:
            synchroniser.copy_state(with_buffers=copies_buffers)

    @property
    def broadcast_buffers(self) -> bool:
        return self.forward_sync_buffers

    @broadcast_buffers.setter
    def broadcast_buffers(self, value: bool) -> None:
        self.forward_sync_buffers = value

    @property
    def device(self) -> torch.device:
        return next(iter(self.module.parameters()), torch.empty(0)).device

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._synchroniser is not None and self._synchroniser.passes.computes_again:
            inputs, kwargs = self._move(inputs, kwargs)
            return self.module(*inputs, **kwargs)
        if self._overlap is not None and torch.compiler.is_compiling():
            self._flush()
        synchronises = torch.is_grad_enabled() and self.require_backward_grad_sync
        Join.notify_join_context(self)
        # A forward that needs nobody connects to nobody: one rank alone may evaluate a copy.
        if synchronises or self.will_sync_module_buffers():
            self._prepare(self._connect(), synchronises)
            if synchronises and self._joining is None:
                self._connect().see_inputs(inputs, kwargs)
        elif self._synchroniser is not None and torch.is_grad_enabled():
            self._synchroniser.passes.noting.start_forward()
        taking = None if self._synchroniser is None else self._synchroniser.taking
        if taking is not None:
            taking.begin_forward()
        inputs, kwargs = self._move(inputs, kwargs)
        outputs = self.module(*inputs, **kwargs) if taking is None else taking.compute(self.module, inputs, kwargs)
        # As torch has it: buffers follow the next time if this forward trained.  Asked anew, because Lightning calls
        # backward inside of a forward and then says that there will be none.
        synchronises = torch.is_grad_enabled() and self.require_backward_grad_sync
        self.require_forward_param_sync = synchronises
        if self._synchroniser is not None:
            self._synchroniser.passes.expect(outputs, synchronise=synchronises)
        return outputs

    @never_compiled
    def _flush(self) -> None:
        """Inside of a compiled wrapper no module can wait for its own."""
        if self._overlap is not None:
            self._overlap.gates.flush()

    def _prepare(self, synchroniser: Synchroniser, synchronises: bool) -> None:
        synchroniser.passes.check_closed()
        if synchronises:
            synchroniser.check_unchanged()
            self._check_optimizers()
            synchroniser.adopt_unfrozen()
            synchroniser.passes.start_forward()
        if self.will_sync_module_buffers():
            synchroniser.copy_buffers(from_lowest=self._joining is not None)

    @never_compiled
    def _check_optimizers(self) -> None:
        """At the first forward that trains, because optimizers are made after the wrapper."""
        if not self._has_trained:
            _check_steps(self.module, self.parameters_to_ignore)
            self._has_trained = True

    def overlap(self) -> None:
        """From now on backward returns before the gradients are there; see `parallelize`."""
        synchroniser = self._connect()
        if isinstance(synchroniser.planning, Profiling):
            synchroniser.planning.has_gates = True
        if self._overlap is None and synchroniser.group.size > 1:
            self._overlap = Overlap(self.module, prioritises=synchroniser.group.priority is not Priority.OFF)
            synchroniser.passes.overlap_with(self._overlap)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if set_to_none:
            forget_gradients(self.parameters())
        super().zero_grad(set_to_none)

    @property
    def coordinator(self) -> Coordinator | None:
        """Who knows the plan, once there is one: some steps after the first."""
        planning = self._connect().planning
        return None if planning is None else planning.coordinator

    @property
    def reducer(self) -> Any:  # type: ignore[override]
        """For frameworks that tell torch's own when gradients will come."""
        return Reducer(self._connect().passes)

    @property
    def rank(self) -> int:
        """This worker's number in the group that the module is trained by."""
        return self._connect().group.rank

    def will_sync_module_buffers(self) -> bool:
        return self.require_forward_param_sync and self.forward_sync_buffers and self._has_buffers

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward passes inside of it accumulate gradients on this rank only."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Train with uneven inputs: ranks that run out let the others go on without them."""
        if not enable:
            yield
            return
        self._joining = Joining(self._connect(), not divide_by_initial_world_size, throw_on_early_termination)
        try:
            yield
            self._joining.run_out()
        finally:
            self._joining = None

    def join_hook(self, **kwargs: Any) -> JoinHook:
        divide_by_active = not kwargs.get("divide_by_initial_world_size", True)
        self._joining = Joining(self._connect(), divide_by_active, throws=False)
        return TorchJoinHook(self._joining, self._end_join)

    @property
    def join_device(self) -> torch.device:
        return self.device

    @property
    def join_process_group(self) -> Any:
        return self.process_group if self.process_group is not None else torch.distributed.group.WORLD

    def register_comm_hook(self, state: object, hook: Any) -> NoReturn:
        raise _refuse(
            "communication hooks belong to torch's reducer, which is not used here: leave the hook out. To send fewer "
            "bytes without loss let the plan choose (UNDERTOW_PLAN); to synchronise less often use no_sync()"
        )

    def _register_builtin_comm_hook(self, comm_hook_type: object) -> NoReturn:
        self.register_comm_hook(None, comm_hook_type)

    def _register_fused_optim(self, optim: object, *args: Any, **options: Any) -> NoReturn:
        self.register_comm_hook(None, optim)

    def _register_buffer_comm_hook(self, state: object, hook: Any, comm_hook_location: Any = None) -> NoReturn:
        raise _refuse("communication hooks for buffers are not called here: rank 0's buffers are copied to all ranks")

    def _update_process_group(self, new_process_group: Any) -> NoReturn:
        raise _refuse("the process group of a wrapped module cannot be changed: wrap its .module again")

    def _remove_autograd_hooks(self) -> NoReturn:
        raise _refuse("the hooks of a wrapped module cannot be removed: train its .module, or use no_sync()")

    def _set_sparse_metadata(self, global_unique_ids: Any) -> None:
        """Nothing to do: rows that any worker has touched are found without it."""

    def _set_ddp_sink_clone(self, val: bool) -> None:
        """Nothing to do: outputs are never copied."""

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        """Nothing to do: torch's statistics are not collected."""

    def _check_reducer_finalized(self) -> None:
        self._connect().passes.check_closed()

    def _connect(self) -> Synchroniser:
        """What runs underneath; made again after a copy or unpickling."""
        if self._synchroniser is None:
            self._synchroniser = Synchroniser(self)
            # As torch has it, where there is one: functions of torch's crash on None.
            self.process_group = find_process_group(self.process_group, self._synchroniser.group)
        return self._synchroniser

    @property
    def is_joining(self) -> bool:
        """Whether ranks may run out of input at any time."""
        return self._joining is not None

    def end_of_backward(self, absent: bool) -> None:
        """A synchronised backward has ended; some rank took no part in it if `absent`."""
        if self._joining is not None and absent:
            self._joining.notice_absent()

    def _end_join(self) -> None:
        self._joining = None

    def _move(self, inputs: Any, kwargs: Any) -> tuple[Any, Any]:
        if not self.device_ids:
            return inputs, kwargs
        device = torch.device(self.device.type, self.device_ids[0])
        moved_inputs, moved_kwargs = _to_kwargs(inputs, kwargs, device, False)
        return moved_inputs[0], moved_kwargs[0]

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        group = self._connect().group
        return describe_wrapper(self, rank=group.rank, size=group.size)

    def _set_static_graph(self) -> None:
        self.static_graph = True  # nothing to prepare: any graph works

    def __getstate__(self) -> dict[str, Any]:
        if self._given_group is not None and self._given_group is not torch.distributed.group.WORLD:
            raise ConfigError(
                "a DistributedDataParallel over a part of the ranks cannot be copied or pickled: the copy would not "
                "know its process_group. Copy its .module and wrap that"
            )
        left_behind = ("_synchroniser", "_overlap", "_joining", "process_group", "_given_group")
        return {**self.__dict__, **dict.fromkeys(left_behind)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]


def _refuse(reason: str) -> ConfigError:
    """For what torch's own wrapper can do, and ours cannot."""
    return ConfigError(
        f"{reason}. A script for torch's own DistributedDataParallel keeps that with --ddp off (UNDERTOW_DDP=off)"
    )


def _check_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name in _IMPOSSIBLE and value is not None:
            raise _refuse(f"{name} is not supported by undertow: {_IMPOSSIBLE[name]}")
        if name not in _IMPOSSIBLE and name not in _WITHOUT_EFFECT:
            raise TypeError(f"unexpected argument {name!r}: no DistributedDataParallel has it")


def _check_trainable(module: torch.nn.Module, ignored: set[str]) -> None:
    named = [(name, parameter) for name, parameter in module.named_parameters() if name not in ignored]
    if not any(parameter.requires_grad for _, parameter in named):
        state = "they are all frozen" if named else "it has no parameters"
        raise NothingToTrain(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient. "
            f"{type(module).__name__}: {state}. Use the module itself, or unfreeze a parameter before wrapping it"
        )


def _check_steps(module: torch.nn.Module, ignored: set[str]) -> None:
    for name, parameter in module.named_parameters():
        if name not in ignored and hasattr(parameter, "_in_backward_optimizers"):
            raise _refuse(
                f"parameter {name!r} is stepped during backward (_apply_optimizer_in_backward), before its gradient is "
                "averaged: use an ordinary optimizer"
            )


def _check_module(module: torch.nn.Module, device_ids: Any, output_device: Any) -> None:
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise _refuse("a module that was scripted with torch.jit cannot be wrapped: wrap the module it was made from")
    for name, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise Uninitialized(
                f"uninitialized parameter {name!r}: run a forward pass of the module before wrapping it"
            )
    is_on_host = all(parameter.device.type == "cpu" for parameter in module.parameters())
    if len(device_ids or ()) > 1 or (is_on_host and (device_ids or output_device is not None)):
        raise ConfigError(
            f"device_ids {device_ids} and output_device {output_device}: give the one device that the module is on, "
            "or leave both out"
        )
