"""The gradients of one optimizer: they leave during backward and are there when `step` needs them.

In: autograd's own hooks, "the step needs them now".  Out: every `.grad` is the mean, or the sum, over all ranks.
A gradient leaves as soon as it has been added to as often as one step takes backward passes; what has not left
by then leaves when the step asks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch

from undertow.core.rounds import Op
from undertow.horovod.torch import joining
from undertow.runtime.group import Group
from undertow.torch.accumulators import Added, follow_accumulation
from undertow.torch.gradients import Gradients
from undertow.torch.noting import PassNoting
from undertow.torch.passes import find_accumulator

Named = Sequence[tuple[str, torch.nn.Parameter]]


class StepGradients:
    """Registered with all ranks when made; raises `MismatchError` if they differ."""

    def __init__(
        self,
        group: Group,
        *,
        op: Op,
        passes: int,
        sparse: Container[torch.Tensor],
        compress: Callable[[torch.Tensor], torch.dtype | None],
    ) -> None:
        self.passes = passes  # backward passes that one step takes
        self._group = group
        self._op = op
        self._sparse = sparse
        self._compress = compress
        self._tables: list[Gradients] = []
        self._left: list[list[int]] = []  # of each gradient, passes until it leaves
        self._nodes: list[Any] = []  # autograd's own, held so that the hooks on them stay
        self.is_under_way = False  # something was added to a gradient since the last step
        self._noting = PassNoting()

    def watch(self, named: Named) -> None:
        """These take part from now on; all ranks call it with the same."""
        # Gradients come in about the reverse order of the forward pass.
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
        self._left.append([self.passes] * len(named))
        if self.is_under_way:
            gradients.begin()
        ref = weakref.ref(self)
        for index, parameter in enumerate(gradients.parameters):
            node = find_accumulator(parameter)
            follow_accumulation(node, _hook(ref, table, index))
            self._nodes.append(node)

    def set_passes(self, passes: int) -> None:
        self.passes = passes
        self._left = [[passes] * len(left) for left in self._left]

    @torch.no_grad()
    def ready(self, table: int, index: int, fresh: Added) -> None:
        """A backward pass has added to this gradient."""
        left = self._left[table]
        if not left[index]:
            raise AssertionError(
                f"the gradient of {self._tables[table].name(index)!r} was computed more than backward_passes_per_step "
                f"({self.passes}) times before step(): make backward_passes_per_step larger to add them up first"
            )
        self._begin()
        left[index] -= 1
        if not left[index] and self._group.wait_free:
            self._tables[table].send(index, fresh)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Return when every gradient is that of all ranks."""
        self._begin()
        self._noting.end()
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
            self._noting.begin()
            for gradients in self._tables:
                gradients.begin()


def _hook(ref: weakref.ref[StepGradients], table: int, index: int) -> Callable[[Added, Added], None]:
    def ready(added: Added, fresh: Added) -> None:
        gradients = ref()
        if gradients is not None:
            gradients.ready(table, index, fresh)

    return ready
