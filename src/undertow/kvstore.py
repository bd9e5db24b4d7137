"""The store itself, for anyone's own framework: numpy in, numpy out.  Real numbers only, no complex ones.

    kv = undertow.kvstore.create()
    kv.init("w", value)                     # all workers; rank 0's value counts
    kv.push("w", gradient)                  # the value becomes the sum over all workers
    kv.pull("w", out=array)                 # the value
    kv.pushpull("w", gradient, out=array)   # both at once, the fast way

Every call returns at once with a handle; `handle.wait()` or `kv.wait()` waits.  Until
then leave the arrays alone.  The lower priority number goes first.
A worker takes its shard with it when it ends: call `undertow.barrier()` before, if others
may still pull.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np

from undertow.core.dtypes import dtype_of
from undertow.core.flow import Contribution
from undertow.core.rounds import Array, Op
from undertow.errors import ConfigError
from undertow.plan.slicing import Slice, TensorSpec
from undertow.runtime import process
from undertow.runtime.discarding import discard_with
from undertow.runtime.group import Group
from undertow.runtime.own_calls import note_call
from undertow.runtime.waiting import Ticket


def create() -> KVStore:
    """A store shared by all workers of `undertow.init()`."""
    return KVStore(process.default_group())


class Handle:
    """An operation on its way."""

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
        """Done, and nothing left for `wait` to put in place."""
        return self.is_done and self._after is None

    def wait(self) -> None:
        """Return when the operation is complete; raise what went wrong, such as `PeerLost`."""
        self._group.waiters.wait_for(self._ticket, "the store")
        if self._after is not None:
            after, self._after = self._after, None
            after()


class KVStore:
    """Values by key.  Each key belongs to the shards; a sum needs a push of every worker."""

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
        """Make a key known; all workers call it in the same order.  Rank 0's value counts."""
        if key in self._entries:
            raise ConfigError(f"key {key!r} is initialised already")
        value = np.asarray(value, order="C")
        spec = TensorSpec(str(key), value.shape, dtype_of(value.dtype), value.size, str(value.dtype))
        slices = self._group.register("the key-value store", [spec], op=Op.SUM, keep=True)
        self._entries[key] = spec, slices
        if slices:
            discard_with(self, self._group, range(slices[0].spec.key, slices[-1].spec.key + 1))
        # The sum of one value and nothing else is that value.
        self._start(key, value if self.rank == 0 else None, None, 0).wait()

    def push(self, key: Hashable, value: Array, priority: int = 0) -> Handle:
        """Contribute to the key's next sum, which replaces its value."""
        return self._start(key, value, None, priority)

    def pull(self, key: Hashable, out: Array, priority: int = 0) -> Handle:
        """Fetch the value, with all earlier pushes of this worker in it."""
        return self._start(key, None, out, priority, is_pull=True)

    def pushpull(self, key: Hashable, value: Array, out: Array, priority: int = 0) -> Handle:
        """Contribute to the key's next sum and get it; `out` may be `value`."""
        return self._start(key, value, out, priority)

    def wait(self) -> None:
        """Wait for everything that was started so far."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.wait()

    def _start(
        self, key: Hashable, value: Array | None, out: Array | None, priority: int, *, is_pull: bool = False
    ) -> Handle:
        if key not in self._entries:
            raise ConfigError(f"key {key!r} is not known: call kv.init({key!r}, value) on all workers first")
        self._group.waiters.check()
        note_call()
        spec, slices = self._entries[key]
        value = None if value is None else np.asarray(value, order="C")
        for array in (value, out):
            _check_fits(array, spec)
        if out is not None and not out.flags.writeable:
            raise ConfigError(f"the array for key {key!r} is read-only: nothing can be put into it")
        source = None if value is None else value.reshape(-1)
        target = None if out is None else _flat_target(out)
        ticket = Ticket(len(slices))
        self._group.contribute(
            [
                Contribution(
                    item.spec.key,
                    None if source is None else source[_range(item)],
                    None if target is None else target[_range(item)],
                    int(source is not None),
                    ticket.answer,
                    priority=priority,
                    is_pull=is_pull,
                )
                for item in slices
            ]
        )
        after = None if out is None or target is None or np.shares_memory(out, target) else (lambda: _copy(target, out))
        handle = Handle(self._group, ticket, after)
        self._handles = [other for other in self._handles if not other.is_over] + [handle]
        return handle


def _range(item: Slice) -> slice:
    part = item.parts[0]
    return slice(part.offset, part.offset + part.elements)


def _check_fits(array: Array | None, spec: TensorSpec) -> None:
    if array is not None and (array.shape != spec.shape or str(array.dtype) != spec.label):
        raise ConfigError(
            f"key {spec.name!r} holds {list(spec.shape)} {spec.label}, not {list(array.shape)} {array.dtype}"
        )


def _flat_target(out: Array) -> Array:
    """Where the result lands: in `out` itself if its memory is in one piece."""
    return out.reshape(-1) if out.flags.c_contiguous else np.empty(out.size, out.dtype)


def _copy(target: Array, out: Array) -> None:
    out[...] = target.reshape(out.shape)
