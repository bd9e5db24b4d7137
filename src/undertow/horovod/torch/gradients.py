"""Synchronises the gradients of one optimizer: they are sent during backward and complete before `step`.

In: autograd's hooks, and the call of `step`.  Out: every `.grad` is the mean, or the sum, over all ranks.
A gradient is sent as soon as `backward_passes_per_step` backward passes have added to it; the others are sent when the
step begins.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import torch

from undertow.engine.core.rounds import Op
from undertow.engine.interface import Group
from undertow.horovod.torch import joining
from undertow.torch.gradient.gradients import Gradients
from undertow.torch.passes.backward import Added, follow_gradients
from undertow.torch.passes.pass_events import PassRecorder

Named = Sequence[tuple[str, torch.nn.Parameter]]


class StepGradients:
    """The gradients for an optimizer's next step, registered with all ranks."""

    def __init__(
        self,
        group: Group,
        *,
        op: Op,
        passes: int,
        sparse: Container[torch.Tensor],
        compress: Callable[[torch.Tensor], torch.dtype | None],
    ) -> None:
        self.passes = passes  # backward passes per step
        self._group = group
        self._op = op
        self._sparse = sparse
        self._compress = compress
        self._tables: list[Gradients] = []
        self._passes_left: list[list[int]] = []  # by table and gradient: passes until it is sent
        self._nodes: list[Any] = []  # autograd's nodes, kept alive because their hooks end with them
        self.is_under_way = False  # a backward pass has added to a gradient since the last step
        self._recorder = PassRecorder()

    def watch(self, named: Named) -> None:
        """Start to synchronise these parameters; raise `MismatchError` if ranks give different names."""
        # Backward produces gradients roughly in the reverse order of the forward pass.
        gradients = Gradients(
            self._group,
            "the distributed optimizer",
            named[::-1],
            sparse=self._sparse,
            op=self._op,
            compress=self._compress,
        )
        joining.register(self._group, gradients.table.first.slices)
        table = len(self._tables)
        self._tables.append(gradients)
        self._passes_left.append([self.passes] * len(named))
        if self.is_under_way:
            gradients.begin()
        self._nodes += follow_gradients(gradients.parameters, self, table=table)

    def set_passes(self, passes: int) -> None:
        self.passes = passes
        self._passes_left = [[passes] * len(left) for left in self._passes_left]

    @torch.no_grad()
    def ready(self, table: int, index: int, added: Added, fresh: Added) -> None:
        """Note that a backward pass has added to this gradient; send it if this was the last pass of the step."""
        left = self._passes_left[table]
        if not left[index]:
            raise AssertionError(
                f"the gradient of {self._tables[table].name(index)!r} was computed more than backward_passes_per_step "
                f"({self.passes}) times before step(): increase backward_passes_per_step to accumulate more passes"
            )
        self._begin()
        left[index] -= 1
        if not left[index] and self._group.shape.wait_free:
            self._tables[table].send(index, fresh)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Wait until every gradient is the mean, or the sum, over all ranks."""
        self._begin()
        self._recorder.end()
        for gradients in self._tables:
            gradients.send_rest()
        for gradients in self._tables:
            gradients.wait()
        for gradients in self._tables:
            gradients.land()
        self.is_under_way = False
        self.set_passes(self.passes)

    def _begin(self) -> None:
        if not self.is_under_way:
            self.is_under_way = True
            self._recorder.begin()
            for gradients in self._tables:
                gradients.begin()
