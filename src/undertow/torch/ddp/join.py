"""Uneven inputs: ranks that run out of data let the others continue without them.

In: a rank that has run out of input.  Out: rounds that complete without it; at the end, the weights of the rank that
trained longest on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed.algorithms.join import JoinHook

from undertow.torch.ddp.synchroniser import Synchroniser


class JoinContext:
    """A `join` context on this rank."""

    def __init__(self, synchroniser: Synchroniser, divide_by_active: bool, throws: bool) -> None:
        self._synchroniser = synchroniser
        self._divide_by_active = divide_by_active
        self._throws = throws
        self._has_left = False

    def run_out(self) -> None:
        """Let the others continue without this rank, wait for them to finish, and copy the final state."""
        self.leave()
        last, is_even = self._synchroniser.group.uneven.settle(self._synchroniser.slices())
        self._synchroniser.copy_state(source=last, with_buffers=self._synchroniser.buffers is not None)
        if self._throws and not is_even:
            raise RuntimeError("a rank has run out of input before the others, and throw_on_early_termination is set")

    def leave(self) -> None:
        if not self._has_left:
            self._has_left = True
            for slices in self._synchroniser.slices():
                self._synchroniser.group.uneven.leave(slices, divide_by_active=self._divide_by_active)

    def notice_absent(self) -> None:
        """Note that a round completed without some rank; raises an error if the user requested one."""
        if self._throws:
            self.run_out()


class TorchJoinHook(JoinHook):
    """A join hook for torch's generic `Join` over several objects."""

    def __init__(self, context: JoinContext, on_end: Callable[[], None]) -> None:
        self._context = context
        self._on_end = on_end

    def main_hook(self) -> None:
        self._context.leave()

    def post_hook(self, is_last_joiner: bool) -> None:
        self._context.run_out()
        self._on_end()
