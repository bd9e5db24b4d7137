"""`DistributedDataParallel`: torch's class with its exact semantics, over undertow's engine.

In: a module, and the user's own training loop.  Out: after `backward()` every `.grad` is the mean over all workers, and
all replicas stay bit-identical.
It subclasses torch's class so that `isinstance` holds, but does not use its reducer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.utils import _to_kwargs
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from undertow.errors import ConfigError
from undertow.plan.active_plan import ActivePlan
from undertow.plan.plan import Plan
from undertow.torch.ddp.checks import check_module, check_options, check_steps, check_trainable
from undertow.torch.ddp.join import JoinContext, TorchJoinHook
from undertow.torch.ddp.reducer import Reducer, ReducerMethods, describe_wrapper
from undertow.torch.ddp.synchroniser import Synchroniser
from undertow.torch.gates.overlap import Overlap
from undertow.torch.gradient.allreduce import find_process_group
from undertow.torch.modules.hooks import never_compiled
from undertow.torch.pending.pending_tensors import forget_gradients
from undertow.torch.planning.probe import Profiling

_BROADCAST_BUCKET_BYTES = 250 * 1024 * 1024  # torch's value, for code that passes it to torch's functions


class DistributedDataParallel(ReducerMethods, TorchDistributedDataParallel):
    """A wrapper around a module, with which `backward()` leaves the mean gradient of all workers.

    Takes torch's arguments, by position or by name.  `plan` chooses the schemes of gradients: it is the name of a
    policy, a plan, or a plan's file.  The default is `UNDERTOW_PLAN`.
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
        check_options(options)
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        # First, as in torch: scripts also catch this error for models that they wrap with device_ids.
        check_trainable(module, self.parameters_to_ignore)
        check_module(module, device_ids, output_device)
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
        # As in torch: the newer argument takes precedence, but does not prevent the first copy.
        copies_buffers = forward_sync_buffers is not None or broadcast_buffers is not False
        self.forward_sync_buffers = copies_buffers if forward_sync_buffers is None else forward_sync_buffers
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        check_steps(module, self.parameters_to_ignore)
        self._has_trained = False
        self._has_buffers = any(name not in self.parameters_to_ignore for name, _ in module.named_buffers())
        self._joining: JoinContext | None = None
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
            self._wait_for_updates()
        synchronises = torch.is_grad_enabled() and self.require_backward_grad_sync
        Join.notify_join_context(self)
        # A forward without communication does not connect: a single rank may evaluate a copy.
        if synchronises or self.will_sync_module_buffers():
            self._prepare(self._connect(), synchronises)
            if synchronises and self._joining is None:
                self._connect().note_inputs(inputs, kwargs)
        elif self._synchroniser is not None and torch.is_grad_enabled():
            self._synchroniser.passes.recorder.start_forward()
        turn_hooks = None if self._synchroniser is None else self._synchroniser.turn_hooks
        if turn_hooks is not None:
            turn_hooks.begin_forward()
        inputs, kwargs = self._move(inputs, kwargs)
        if turn_hooks is None:
            outputs = self.module(*inputs, **kwargs)
        else:
            outputs = turn_hooks.compute(self.module, inputs, kwargs)
        # As in torch: the next forward copies buffers if this one trained.  Read again, because Lightning calls
        # backward inside a forward, and then announces that none will follow.
        synchronises = torch.is_grad_enabled() and self.require_backward_grad_sync
        self.require_forward_param_sync = synchronises
        if self._synchroniser is not None:
            self._synchroniser.passes.expect(outputs, synchronise=synchronises)
        return outputs

    @never_compiled
    def _wait_for_updates(self) -> None:
        """Wait for all updates, because modules in a compiled wrapper cannot wait for their own parameters."""
        if self._overlap is not None:
            self._overlap.gates.wait_for_updates()

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
        """Check the optimizers at the first training forward, because they are made after the wrapper."""
        if not self._has_trained:
            check_steps(self.module, self.parameters_to_ignore)
            self._has_trained = True

    def overlap(self) -> None:
        """Let backward return before the gradients have arrived; see `parallelize`."""
        synchroniser = self._connect()
        if isinstance(synchroniser.planning, Profiling):
            synchroniser.planning.has_gates = True
        if self._overlap is None:
            self._overlap = synchroniser.overlap()

    def zero_grad(self, set_to_none: bool = True) -> None:
        if set_to_none:
            forget_gradients(self.parameters())
        super().zero_grad(set_to_none)

    @property
    def active_plan(self) -> ActivePlan | None:
        """The plan in force; None until it is made, some steps after the first."""
        planning = self._connect().planning
        return None if planning is None else planning.active

    @property
    def reducer(self) -> Any:  # type: ignore[override]
        """A stand-in for torch's reducer, for frameworks that announce backward passes to it."""
        return Reducer(self._connect().passes)

    @property
    def rank(self) -> int:
        """The worker's number in the group that trains the module."""
        return self._connect().group.rank

    def will_sync_module_buffers(self) -> bool:
        return self.require_forward_param_sync and self.forward_sync_buffers and self._has_buffers

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let forward passes inside the block accumulate gradients on this rank only."""
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
        """Train with uneven inputs: ranks that run out let the others continue without them."""
        if not enable:
            yield
            return
        self._joining = JoinContext(self._connect(), not divide_by_initial_world_size, throw_on_early_termination)
        try:
            yield
            self._joining.run_out()
        finally:
            self._joining = None

    def join_hook(self, **kwargs: Any) -> JoinHook:
        divide_by_active = not kwargs.get("divide_by_initial_world_size", True)
        self._joining = JoinContext(self._connect(), divide_by_active, throws=False)
        return TorchJoinHook(self._joining, self._end_join)

    @property
    def join_device(self) -> torch.device:
        return self.device

    @property
    def join_process_group(self) -> Any:
        return self.process_group if self.process_group is not None else torch.distributed.group.WORLD

    def _check_reducer_finalized(self) -> None:
        self._connect().passes.check_closed()

    def _connect(self) -> Synchroniser:
        """Return the synchroniser; creates it if there is none, as after copying or unpickling."""
        if self._synchroniser is None:
            self._synchroniser = Synchroniser(self)
            # Set as in torch if there is a process group: some functions of torch crash on None.
            self.process_group = find_process_group(self.process_group, self._synchroniser.group)
        return self._synchroniser

    @property
    def is_joining(self) -> bool:
        """Whether ranks may run out of input at any time."""
        return self._joining is not None

    def end_of_backward(self, absent: bool) -> None:
        """Note the end of a synchronised backward; `absent` means that some rank took no part."""
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
                "a DistributedDataParallel over a subset of the ranks cannot be copied or pickled: the copy would not "
                "know its process_group. Copy its .module and wrap that"
            )
        dropped = ("_synchroniser", "_overlap", "_joining", "process_group", "_given_group")
        return {**self.__dict__, **dict.fromkeys(dropped)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]
