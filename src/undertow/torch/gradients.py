"""Stages 1 to 3 and 8: gradients leave when they exist and come back as their mean.

In: "this parameter's gradient is ready", "backward has ended".
Out: contributions to the group while backward still runs; afterwards `.grad` holds the
mean over all workers.  A parameter without gradient contributes nothing, so graphs may
differ from step to step and from rank to rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from undertow import trace
from undertow.core.flow import Contribution
from undertow.core.rounds import Array, Op
from undertow.errors import UndertowError
from undertow.plan.slicing import Slice
from undertow.runtime.group import Group
from undertow.runtime.waiting import Ticket
from undertow.torch.device import copier_for, host_memory
from undertow.torch.table import Table
from undertow.torch.tensors import as_array, gradient_spec, is_plain, real


class Gradients:
    """The gradients of some parameters, summed together in one pass after the other.

    Parameters come in the order in which their gradients are expected.
    """

    def __init__(self, group: Group, label: str, named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        self.parameters = [parameter for _, parameter in named]
        self.table = Table(group, label, [gradient_spec(name, parameter) for name, parameter in named], Op.MEAN)
        self._group = group
        self._names = [name for name, _ in named]
        self._copier = copier_for(self.parameters[0].device) if named else copier_for(torch.device("cpu"))
        self._fused = {item.spec.key: _Fused(item, self.parameters) for item in self.table.slices if item.is_fused}
        self._sent = [False] * len(named)
        self._ticket = Ticket(0)
        self._whole: list[tuple[int, torch.Tensor | None, Contribution]] = []

    def begin(self) -> None:
        """A new pass: every slice takes part in one round."""
        self._sent = [False] * len(self.parameters)
        self._ticket = Ticket(len(self.table.slices))
        self._whole = []
        for fused in self._fused.values():
            fused.reset()

    @torch.no_grad()
    def send(self, index: int) -> None:
        """This parameter's gradient is final, or is None: contribute it as it is."""
        if self._sent[index]:
            raise UndertowError(
                f"the gradient of {self._names[index]!r} became ready twice in one backward pass, after it was sent. "
                "Use torch.utils.checkpoint with use_reentrant=False"
            )
        self._sent[index] = True
        if trace.is_on:
            trace.record("gradient", tensor=self._names[index], rank=self._group.rank)
        place = self.table.places[index]
        if place.fused is not None:
            self._stage(self._fused[place.fused.spec.key], place.bit, self.parameters[index].grad)
        elif place.slices:
            self._send_whole(index, place.slices)

    def send_rest(self) -> None:
        """Backward has ended: whatever has not been contributed is now."""
        for index, sent in enumerate(self._sent):
            if not sent:
                self.send(index)

    @torch.no_grad()
    def land(self) -> bool:
        """Wait for all results and put them in place.

        Returns whether a worker had joined, that is, took no part for lack of input.
        """
        self._group.waiters.wait(self._ticket.done)
        for index, host, answer in self._whole:
            if answer.present and host is not None:
                self._land(index, host)
        for fused in self._fused.values():
            fused.land(self._copier.back)
        return self._ticket.absent

    def _send_whole(self, index: int, slices: Sequence[Slice]) -> None:
        gradient = self.parameters[index].grad
        is_ready: Callable[[], bool] | None = None
        host: torch.Tensor | None = None  # where the result lands if not in the gradient itself
        if gradient is not None and is_plain(gradient):
            array = as_array(real(gradient), slices[0].spec.dtype)
        else:
            parameter = real(self.parameters[index].detach())
            host = host_memory(parameter.numel(), parameter.dtype, parameter.device)
            array = as_array(host, slices[0].spec.dtype)
            if gradient is not None:
                is_ready = self._copier.out(real(_dense(gradient)).reshape(-1), host)
        contributions = [self._piece(item, array, gradient is not None) for item in slices]
        self._whole.append((index, host, contributions[0]))
        self._group.contribute(contributions, is_ready)

    def _piece(self, item: Slice, array: Array, has_value: bool) -> Contribution:
        part = item.parts[0]
        piece = array[part.offset : part.offset + part.elements]
        return Contribution(item.spec.key, piece if has_value else None, piece, int(has_value), self._ticket.answer)

    def _stage(self, fused: _Fused, bit: int, gradient: torch.Tensor | None) -> None:
        is_ready = fused.stage(bit, gradient, self._copier.out)
        if fused.is_full:
            fused.contribution = fused.contribute(self._ticket.answer)
            self._group.contribute([fused.contribution], is_ready)

    def _land(self, index: int, host: torch.Tensor) -> None:
        parameter = self.parameters[index]
        result = host.view(real(parameter).shape)
        if parameter.is_complex():
            result = torch.view_as_complex(result)
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
            self._copier.back(result, parameter.grad)
        elif parameter.grad.layout is not torch.strided:
            # Rows that nobody touched stay out; a touched row whose mean is zero does too.
            parameter.grad = result.to_sparse(parameter.grad.sparse_dim()).to(parameter.device)
        else:
            self._copier.back(result, parameter.grad)


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


class _Fused:
    """Several tiny gradients in one slice: they leave when the last of them is there."""

    def __init__(self, item: Slice, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.contribution: Contribution | None = None
        self._item = item
        first = real(parameters[item.parts[0].tensor].detach())
        memory = host_memory(item.spec.elements, first.dtype, first.device)
        self._array = as_array(memory, item.spec.dtype)
        self._parameters = [parameters[part.tensor] for part in item.parts]
        self._segments = [
            memory[part.at : part.at + part.elements].view(real(parameter.detach()).shape)
            for part, parameter in zip(item.parts, self._parameters, strict=True)
        ]
        self._present = 0
        self._left = 0

    @property
    def is_full(self) -> bool:
        return self._left == 0

    def reset(self) -> None:
        self._present = 0
        self._left = len(self._segments)
        self.contribution = None

    def stage(
        self, bit: int, gradient: torch.Tensor | None, copy_out: Callable[..., Callable[[], bool] | None]
    ) -> Callable[[], bool] | None:
        self._left -= 1
        if gradient is None:
            self._segments[bit].zero_()
            return None
        self._present |= 1 << bit
        return copy_out(real(_dense(gradient)), self._segments[bit])

    def contribute(self, on_result: Callable[[Contribution], None]) -> Contribution:
        source = self._array if self._present else None
        return Contribution(self._item.spec.key, source, self._array, self._present, on_result)

    def land(self, copy_back: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        assert self.contribution is not None
        for bit, (parameter, segment) in enumerate(zip(self._parameters, self._segments, strict=True)):
            if not self.contribution.present >> bit & 1:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            copy_back(segment, real(parameter.grad))
