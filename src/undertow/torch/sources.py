"""Stage 1 for gradients that are made of parts: a layer hands over its parts instead of its gradient.

In: parts, offered by a layer in its backward (see `factors` and `rows`).  Out: everything that this
worker knows of the gradient, and out of what all workers know, their mean.
A pass that is synchronised takes the parts, and the layer makes no gradient.  One that only
accumulates (`no_sync`) keeps them, and the layer makes its gradient as well, for whoever looks; when
the next pass finds that gradient as it was left, the kept parts go along in its place.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from undertow.torch.device import remember_stream
from undertow.torch.pieces import NOTHING, Column, Known

Parts = tuple[torch.Tensor, ...]
Stamp = tuple[int, int, object]


_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Ask(enum.Enum):
    """What a backward pass wants of a layer."""

    GRADIENT = enum.auto()
    PARTS = enum.auto()  # instead of the gradient
    BOTH = enum.auto()


class Form(Protocol):
    """What the parts of a gradient look like, and what is made of them."""

    @property
    def columns(self) -> Sequence[Column]: ...

    def join(self, parts: Sequence[Parts]) -> Parts:
        """One worker's parts of several calls as those of one."""

    def split(self, gradient: torch.Tensor) -> Parts | None:
        """The parts of a gradient that autograd made, if that can be had for nothing."""

    def make(self, parts: Sequence[Parts], workers: int) -> torch.Tensor:
        """The mean gradient out of everybody's parts, in rank order."""


class Made(NamedTuple):
    """Parts of one call of a layer."""

    parts: Parts
    follow: Callable[[], None]  # to be called before they are read

    @classmethod
    def here(cls, parts: Parts) -> Made:
        """On the stream that this backward runs on; the gradient, which is None, does not tell autograd."""
        return cls(parts, remember_stream(parts[-1].device, parts))

    def read(self) -> Parts:
        self.follow()
        return self.parts


class Source:
    """Of one parameter.  `asks` tells what the pass that runs now wants."""

    def __init__(self, parameter: torch.nn.Parameter, form: Form, asks: Callable[[], Ask]) -> None:
        self.parameter = parameter
        self.form = form
        self._asks = asks
        self._taken: list[Made] = []
        self._kept: list[Made] = []
        self._is_alone = False  # nothing else is in the gradient
        self._made: list[Stamp] = []  # gradients of this backward whose parts are kept
        self._stamp: Stamp | None = None  # of the gradient that the kept parts make

    def ask(self) -> Ask:
        if self.parameter._backward_hooks or getattr(self.parameter, "_post_accumulate_grad_hooks", None):
            return Ask.GRADIENT  # somebody wants to see it
        return self._asks()

    def give(self, parts: Parts) -> None:
        """The pass asked for them, and for no gradient."""
        self._taken.append(Made.here(tuple(part.detach() for part in parts)))

    def keep(self, parts: Parts, gradient: torch.Tensor) -> None:
        """The pass asked for both."""
        if not self._made:
            self._check_kept()
            held = self.parameter.grad
            self._is_alone = (
                self._stamp is not None or held is None or (held.layout is torch.strided and not bool(held.any()))
            )
        self._kept.append(Made.here(tuple(part.detach().clone() for part in parts)))
        self._made.append(_stamp_of(gradient))

    def accumulated(self, added: torch.Tensor | None) -> None:
        """A pass that is not synchronised has added this to the gradient, once per backward."""
        made, self._made = self._made, []
        gradient = self.parameter.grad
        # What was made is what was added: nothing came another way, and no two were added up before.
        is_all = self._is_alone and len(made) == 1 and added is not None and _stamp_of(added) == made[0]
        if is_all and gradient is not None:
            self._stamp = _stamp_of(gradient)
        else:
            self._kept, self._stamp = [], None

    def take(self) -> Known:
        """All that this worker knows of the gradient now.  Given once."""
        gradient = whole = self.parameter.grad
        self._check_kept()
        if self._kept:
            whole = None
        parts = [made.read() for made in (*self._kept, *self._taken)]
        self._kept, self._taken, self._stamp = [], [], None
        split = None if whole is None else self.form.split(whole)
        if whole is not None and split is None and whole.layout is not torch.strided:
            whole = whole.to_dense()
        if split is not None:
            whole = None
            parts.append(split)
        if gradient is None and not parts:
            return NOTHING
        if whole is not None and not bool(whole.any()):
            whole = None  # set to zero, and nothing added to it
        return Known(self.form.join(parts) if parts else (), whole)

    def make(self, known: Sequence[Known], dtype: torch.dtype) -> torch.Tensor | None:
        """The mean gradient out of what all workers know; None if none has one."""
        if not any(one.is_present for one in known):
            return None
        result = self.form.make([one.parts for one in known if one.parts], len(known))
        for one in known:
            if one.whole is not None:
                dense = result.to_dense() if result.is_sparse else result
                result = dense.add_(one.whole.to(dense.device, dense.dtype), alpha=1 / len(known))
        return result.to(dtype)

    def _check_kept(self) -> None:
        """Forget them if somebody has changed the gradient that they make."""
        gradient = self.parameter.grad
        if gradient is None or _stamp_of(gradient) != self._stamp:
            self._kept, self._stamp = [], None


def _stamp_of(tensor: torch.Tensor) -> Stamp:
    if tensor.layout is not torch.strided:
        return 0, 0, object()  # equal to none
    # The memory of a gradient that is gone is used again, and `.data` is changed without a trace.
    bits = (
        tensor.detach()
        .contiguous()
        .view(torch.uint8 if tensor.element_size() == 1 else _INTEGERS[tensor.element_size()])
    )
    return tensor.data_ptr(), tensor._version, int(bits.sum())
