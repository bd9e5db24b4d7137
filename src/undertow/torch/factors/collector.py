"""Stage 1 for gradients that are sent as factors: a layer hands over its factors instead of its gradient.

In: factors, offered by a layer in its backward (see `linear` and `embeddings`).  Out: this worker's share of the
gradient, and from the shares of all workers their mean.
A synchronised pass takes the factors, and the layer computes no gradient.  A pass that only accumulates (`no_sync`)
keeps them, and the layer also computes its gradient, which the user may read.  If that gradient is unchanged when the
next pass is synchronised, the kept factors are sent in its place.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from undertow.plan.profile import LayerKind
from undertow.sync.slot import NO_FACTORS, Field, WorkerFactors
from undertow.torch.slots.device import remember_stream

Factors = tuple[torch.Tensor, ...]
Stamp = tuple[int, int, object]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Wanted(enum.Enum):
    """The result that a backward pass wants from a layer."""

    GRADIENT = enum.auto()
    FACTORS = enum.auto()
    BOTH = enum.auto()


class Form(Protocol):
    """The format of a gradient's factors, and the computation of the gradient from them."""

    kind: LayerKind

    @property
    def fields(self) -> Sequence[Field]: ...

    def join(self, factors: Sequence[Factors]) -> Factors:
        """Combine one worker's factors of several calls of the layer into one set."""

    def split(self, gradient: torch.Tensor) -> Factors | None:
        """Return the factors of a gradient that autograd computed, if they need no computation."""

    def make(self, factors: Sequence[Factors], workers: int) -> torch.Tensor:
        """Return the mean gradient from the factors of all workers, in rank order."""


class FactorCollector:
    """The factors of one parameter's gradient.  `wants` returns what the running pass wants."""

    def __init__(self, parameter: torch.nn.Parameter, form: Form, wants: Callable[[], Wanted]) -> None:
        self.parameter = parameter
        self.form = form
        self._wants = wants
        # Each function returns the factors of one call of the layer, on the stream that reads them: autograd does not
        # synchronise streams here, because the gradient is None.
        self._taken: list[Callable[[], Factors]] = []
        self._kept: list[Callable[[], Factors]] = []
        self._is_alone = False  # the gradient contains nothing but results of kept factors
        self._made: list[Stamp] = []  # stamps of gradients of this backward whose factors are kept
        self._stamp: Stamp | None = None  # the stamp of the gradient that results from the kept factors

    def find_wanted(self) -> Wanted:
        """Return what the layer should hand over."""
        if self.parameter._backward_hooks or getattr(self.parameter, "_post_accumulate_grad_hooks", None):
            return Wanted.GRADIENT  # one of the user's hooks reads it
        return self._wants()

    def hand_over(self, factors: Factors, compute: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        """Take the factors that backward has computed; return the gradient if it is wanted, too."""
        # With `create_graph` the gradient itself is needed.
        wanted = Wanted.GRADIENT if torch.is_grad_enabled() else self.find_wanted()
        if wanted is Wanted.FACTORS:
            self.add(factors)
            return None
        gradient = compute()
        if wanted is Wanted.BOTH:
            self.keep(factors, gradient)
        return gradient

    def add(self, factors: Factors) -> None:
        """Add factors that replace the gradient."""
        self._taken.append(remember_stream(tuple(factor.detach() for factor in factors)))

    def keep(self, factors: Factors, gradient: torch.Tensor) -> None:
        """Keep a copy of the factors of a gradient that the layer also returns."""
        if not self._made:
            self._check_kept()
            held = self.parameter.grad
            self._is_alone = (
                self._stamp is not None or held is None or (held.layout is torch.strided and not bool(held.any()))
            )
        self._kept.append(remember_stream(tuple(factor.detach().clone() for factor in factors)))
        self._made.append(_stamp_of(gradient))

    def accumulated(self, added: torch.Tensor | None) -> None:
        """Note that a pass that is not synchronised has added this to the gradient, once per backward."""
        made, self._made = self._made, []
        gradient = self.parameter.grad
        # The tensor that was added is the layer's one result: nothing bypassed the layer or was summed before.
        is_all = self._is_alone and len(made) == 1 and added is not None and _stamp_of(added) == made[0]
        if is_all and gradient is not None:
            self._stamp = _stamp_of(gradient)
        else:
            self._kept, self._stamp = [], None

    def take(self) -> WorkerFactors[torch.Tensor]:
        """Remove and return this worker's share of the gradient."""
        self._check_kept()
        gradient = self.parameter.grad
        whole = None if self._kept else gradient
        factors = [read() for read in (*self._kept, *self._taken)]
        self._kept, self._taken, self._stamp = [], [], None
        if whole is not None and (split := self.form.split(whole)) is not None:
            whole = None
            factors.append(split)
        if gradient is None and not factors:
            return NO_FACTORS
        if whole is not None:
            dense = whole if whole.layout is torch.strided else whole.to_dense()
            whole = dense if bool(dense.any()) else None  # a gradient of zeros need not be sent
        return WorkerFactors(self.form.join(factors) if factors else (), whole)

    def combine(self, workers: Sequence[WorkerFactors[torch.Tensor]], dtype: torch.dtype) -> torch.Tensor | None:
        """Return the mean gradient from the shares of all workers; None if none has a gradient."""
        if not any(one.is_present for one in workers):
            return None
        result = self.form.make([one.factors for one in workers if one.factors], len(workers))
        for one in workers:
            if one.whole is not None:
                dense = result.to_dense() if result.is_sparse else result
                result = dense.add_(one.whole.to(dense.device, dense.dtype), alpha=1 / len(workers))
        return result.to(dtype)

    def forget(self) -> None:
        """Forget all factors: the gradient is sent as a whole."""
        self._taken, self._kept, self._made, self._stamp = [], [], [], None

    def _check_kept(self) -> None:
        """Forget the kept factors if the gradient that results from them was changed."""
        gradient = self.parameter.grad
        if gradient is None or _stamp_of(gradient) != self._stamp:
            self._kept, self._stamp = [], None


def _stamp_of(tensor: torch.Tensor) -> Stamp:
    if tensor.layout is not torch.strided:
        return 0, 0, object()  # equals no other stamp
    # Address and version are not enough: memory is reused, and changes through `.data` leave the version as it is.
    bits = tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()])
    return tensor.data_ptr(), tensor._version, int(bits.sum())
