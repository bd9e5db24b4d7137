"""The key-value store, for other frameworks: numpy in, numpy out.  Real numbers only.

    kv = undertow.kvstore.create()
    kv.init("w", value)                     # on all workers; the value is rank 0's
    kv.push("w", gradient)                  # the value becomes the sum over all workers
    kv.pull("w", out=array)                 # copies the value to `array`
    kv.pushpull("w", gradient, out=array)   # both in one round, which is faster

`push`, `pull` and `pushpull` return a handle immediately; `handle.wait()` or `kv.wait()` waits for the result.  Do not
read or write the arrays before that.  Lower priority numbers are sent first.
A worker's shard ends with the worker: if others may still pull, call `undertow.barrier()` before it exits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable

import numpy as np

from undertow.engine.client.discarding import discard_with
from undertow.engine.client.waiting import Ticket
from undertow.engine.core.dtypes import dtype_of
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Array, Op
from undertow.engine.core.slicing import Slice, TensorSpec
from undertow.engine.interface import Group
from undertow.errors import ConfigError
from undertow.runtime import process
from undertow.sync.table import view_slice


def create() -> KVStore:
    """Return a store shared by all workers of `undertow.init()`."""
    return KVStore(process.default_group())


class Handle:
    """A pending operation."""

    def __init__(self, group: Group, ticket: Ticket, after: Callable[[], None] | None = None) -> None:
        self._group = group
        self._ticket = ticket
        self._after = after

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._ticket.is_done

    @property
    def is_over(self) -> bool:
        """Whether the operation is done and `wait` has nothing left to copy."""
        return self.is_done and self._after is None

    def wait(self) -> None:
        """Wait until the operation is complete; raises its error, such as `PeerLost`."""
        self._group.wait_for(self._ticket, "the key-value store")
        if self._after is not None:
            after, self._after = self._after, None
            after()


class KVStore:
    """Store of values by key, which the shards hold.  A sum needs a push from every worker."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._entries: dict[Hashable, tuple[TensorSpec, list[Slice]]] = {}
        self._handles: list[Handle] = []

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def world_size(self) -> int:
        return self._group.size

    def init(self, key: Hashable, value: Array) -> None:
        """Create a key with rank 0's value.  All workers must create their keys in the same order."""
        if key in self._entries:
            raise ConfigError(f"key {key!r} is initialised already")
        value = np.asarray(value, order="C")
        spec = TensorSpec(str(key), value.shape, dtype_of(value.dtype), value.size, str(value.dtype))
        slices = self._group.register("the key-value store", [spec], op=Op.SUM, keep=True)
        self._entries[key] = spec, slices
        if slices:
            discard_with(self, self._group.discard, range(slices[0].spec.key, slices[-1].spec.key + 1))
        # The sum of rank 0's value alone is that value.
        self._start(key, value if self.rank == 0 else None, None, 0).wait()

    def push(self, key: Hashable, value: Array, priority: int = 0) -> Handle:
        """Contribute to the key's next sum, which will replace its value."""
        return self._start(key, value, None, priority)

    def pull(self, key: Hashable, out: Array, priority: int = 0) -> Handle:
        """Fetch the value, which includes all earlier pushes of this worker."""
        return self._start(key, None, out, priority, is_pull=True)

    def pushpull(self, key: Hashable, value: Array, out: Array, priority: int = 0) -> Handle:
        """Contribute to the key's next sum and fetch it; `out` may be `value`."""
        return self._start(key, value, out, priority)

    def wait(self) -> None:
        """Wait for all operations started so far."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.wait()

    def _start(
        self, key: Hashable, value: Array | None, out: Array | None, priority: int, *, is_pull: bool = False
    ) -> Handle:
        if key not in self._entries:
            raise ConfigError(f"key {key!r} is not known: call kv.init({key!r}, value) on all workers first")
        self._group.check()
        process.note_own_call()
        spec, slices = self._entries[key]
        source = None if value is None else _flat_source(np.asarray(value, order="C"), spec)
        target = None if out is None else _flat_target(out, spec)
        ticket = Ticket(len(slices))
        self._group.contribute(
            [
                Contribution(
                    item.spec.key,
                    None if source is None else view_slice(item, source),
                    None if target is None else view_slice(item, target),
                    int(source is not None),
                    ticket.answer,
                    priority=priority,
                    is_pull=is_pull,
                )
                for item in slices
            ]
        )
        handle = Handle(self._group, ticket, _copy_later(target, out))
        self._handles = [other for other in self._handles if not other.is_over] + [handle]
        return handle


def _flat_source(value: Array, spec: TensorSpec) -> Array:
    _check_fits(value, spec)
    return value.reshape(-1)


def _flat_target(out: Array, spec: TensorSpec) -> Array:
    """Return flat memory for a result: that of `out` itself if it is contiguous."""
    _check_fits(out, spec)
    if not out.flags.writeable:
        raise ConfigError(f"the array for key {spec.name!r} is read-only: give one that can be written to")
    return out.reshape(-1) if out.flags.c_contiguous else np.empty(out.size, out.dtype)


def _check_fits(array: Array, spec: TensorSpec) -> None:
    if array.shape != spec.shape or str(array.dtype) != spec.label:
        raise ConfigError(
            f"key {spec.name!r} holds {list(spec.shape)} {spec.label}, not {list(array.shape)} {array.dtype}"
        )


def _copy_later(target: Array | None, out: Array | None) -> Callable[[], None] | None:
    """Return a function that copies the result to `out`; None if the result is received there."""
    if target is None or out is None or np.shares_memory(out, target):
        return None
    return functools.partial(np.copyto, out, target.reshape(out.shape))
