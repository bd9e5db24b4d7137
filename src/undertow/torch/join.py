"""Uneven inputs: ranks that run out of data let the others go on without them.

In: "this rank has no more input".  Out: rounds that are complete without it, and at the
end everyone with the weights of the rank that trained longest.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from torch.distributed.algorithms.join import JoinHook

from undertow.coordinator.agreement import decode_latest
from undertow.torch.synchroniser import Synchroniser


class Joining:
    """One join context on one rank."""

    def __init__(self, synchroniser: Synchroniser, divide_by_active: bool, throws: bool) -> None:
        self._synchroniser = synchroniser
        self._divide_by_active = divide_by_active
        self._throws = throws
        self._has_left = False

    def run_out(self) -> None:
        """No more input here: let the others go on, wait for them, go on together."""
        self.leave()
        self.settle()

    def leave(self) -> None:
        if not self._has_left:
            self._has_left = True
            for slices in self._synchroniser.slices():
                self._synchroniser.group.join(slices, divide_by_active=self._divide_by_active)

    def notice_absent(self) -> None:
        """A round was complete without some rank: an error if the user wants it to be one."""
        if self._throws:
            self.run_out()

    def settle(self) -> None:
        group, tables = self._synchroniser.group, self._synchroniser.slices()
        own = [group.rounds_done(slices) for slices in tables]
        reply = group.agree("join", msgspec.msgpack.encode(own))
        last, steps, is_even = decode_latest(reply)
        for slices, step in zip(tables, steps, strict=True):
            group.resume(slices, step)
        group.barrier()
        self._synchroniser.copy_state(source=last, with_buffers=self._synchroniser.follows_buffers)
        if self._throws and not is_even:
            raise RuntimeError("some rank has run out of input before the others; throw_on_early_termination is set")


class TorchJoinHook(JoinHook):
    """The same for torch's generic `Join` over several objects."""

    def __init__(self, joining: Joining, on_end: Callable[[], None]) -> None:
        self._joining = joining
        self._on_end = on_end

    def main_hook(self) -> None:
        self._joining.leave()

    def post_hook(self, is_last_joiner: bool) -> None:
        self._joining.run_out()
        self._on_end()
