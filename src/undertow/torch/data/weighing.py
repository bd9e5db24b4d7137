"""Weighs the terms of a loss while its backward runs.

In: the tensors that a script hands to backward.  Out: the gradient of each term is as large as `losses` decides.
All ranks tell each other about their losses at the start of every backward of a part: one small message, and a wait
for those of the others.  In a script that knows of ranks, a backward that reaches no wrapped module, such as that of a
probe on rank 0, concerns no other rank, and nothing is exchanged.  All other backwards must be called equally often on
all ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import numpy as np
import torch

from undertow.core.decoding import Decoder
from undertow.core.dtypes import DType
from undertow.core.flow import Contribution
from undertow.core.rounds import Op
from undertow.errors import UndertowError
from undertow.plan.slicing import TensorSpec
from undertow.runtime.group import Group
from undertow.runtime.waiting import Ticket
from undertow.torch.broadcast import URGENT
from undertow.torch.data.losses import Verdict, weigh
from undertow.torch.data.reports import Kind, Report, Term
from undertow.torch.data.sharing import Sharing
from undertow.torch.data.terms import Found, find_nodes, find_terms
from undertow.torch.reaching import reaches_wrapped
from undertow.torch.table import Table

Gradients = tuple[torch.Tensor | None, ...]
_reports: Decoder[Report] = Decoder(Report, "the loss of another rank")
_SUMMED = (
    "the loss is a sum over the batch: it is summed over all workers, as in one process with the larger batch, so "
    "gradients grow with their number (--batch split or UNDERTOW_BATCH=split leaves them as they are)"
)

_EQUALLY_OFTEN = (
    "This worker waits in backward to learn what the losses of the others are made of: all workers must call backward "
    "equally often for the parameters of a wrapped model. To compute other gradients on one worker only, use "
    "torch.autograd.grad or backward(inputs=...)"
)


class Weigher:
    """What weighs the losses of one script."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._exchange: _Exchange | None = None

    @contextmanager
    def weighing(self, tensors: Sequence[Any]) -> Iterator[None]:
        """Inside of the block a backward of these tensors weighs each term; it is given the part's own weight."""
        sharing = self._sharing
        if sharing.group is None or sharing.samples is None or sharing.size == 1:
            yield
            return
        terms = _find(tensors)
        ratios = _Ratios(lambda: self._decide(terms))
        with ExitStack() as stack:
            if not sharing.knows_ranks:
                ratios.find()
            else:  # only the pass itself knows what it reaches
                for node in find_nodes(tensors):
                    stack.callback(node.register_prehook(ratios.before_first).remove)
            for index, found in enumerate(terms):
                if found.node and ratios.may_scale(index):
                    stack.callback(found.node.register_prehook(ratios.scaling(index)).remove)
            yield

    def _decide(self, terms: Sequence[Found]) -> list[float]:
        """Returns what the gradient of each term is scaled by; of those that are left out by nothing."""
        sharing = self._sharing
        assert sharing.group is not None
        assert sharing.samples is not None
        if sharing.knows_ranks and not reaches_wrapped():
            return []
        verdict = self._ask(sharing.group, Report(sharing.samples, tuple(found.term for found in terms)))
        for doubt in verdict.doubts:
            sharing.say(doubt)
        if verdict.has_sums and not sharing.is_split:
            sharing.say(_SUMMED)
        return [ratio_of(one, sharing.rank, sharing.weight) for one in verdict.weights]

    def _ask(self, group: Group, report: Report) -> Verdict:
        if self._exchange is None:
            self._exchange = _Exchange(group)
        return weigh(self._exchange.run(report), batch=self._sharing.batch if self._sharing.is_split else None)


class _Ratios:
    """What the gradients of all terms are scaled by, in one backward pass: decided once, when it is needed."""

    def __init__(self, decide: Callable[[], list[float]]) -> None:
        self._decide = decide
        self._ratios: list[float] | None = None
        self._lock = threading.Lock()  # a pass over several devices runs in several threads

    def find(self) -> list[float]:
        with self._lock:
            if self._ratios is None:
                self._ratios = self._decide()
            return self._ratios

    def may_scale(self, index: int) -> bool:
        return self._ratios is None or self._ratio(index) != 1

    def before_first(self, gradients: Gradients) -> None:
        """The hook of the tensors that backward starts from: also a loss without any term takes part."""
        self.find()

    def scaling(self, index: int) -> Callable[[Gradients], Gradients | None]:
        def scale(gradients: Gradients) -> Gradients | None:
            ratio = self._ratio(index)
            return None if ratio == 1 else scaling_by(ratio)(gradients)

        return scale

    def _ratio(self, index: int) -> float:
        ratios = self.find()
        return ratios[index] if index < len(ratios) else 1.0  # a rank that counts for nothing may have other terms


class _Exchange:
    """Everybody's reports to everybody, as often as wanted."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._label = "what the losses of all ranks are made of"
        self._table = Table(group, self._label, [TensorSpec("loss", (), DType.BYTES, 0)], Op.GATHER)

    def run(self, report: Report) -> list[Report]:
        ticket = Ticket(1)
        body = np.frombuffer(msgspec.msgpack.encode(report), np.uint8)
        key = self._table.first.slices[0].spec.key
        contribution = Contribution(key, body, None, 1, ticket.answer, URGENT)
        self._group.contribute([contribution])
        self._wait_for(ticket)
        reports = [_reports.decode(b"" if piece.array is None else piece.array.data) for piece in contribution.pieces]
        self._group.release([piece for rank, piece in enumerate(contribution.pieces) if rank != self._group.rank])
        return reports

    def _wait_for(self, ticket: Ticket) -> None:
        waiters = self._group.waiters
        try:
            waiters.wait_for(ticket, self._label)
        except UndertowError as error:
            if waiters.error is not None:
                raise
            # The group is alive: some rank has not come to this backward.
            raise UndertowError(f"{error}. {_EQUALLY_OFTEN}") from None


def _find(tensors: Sequence[Any]) -> list[Found]:
    try:
        return find_terms(tensors)
    except RuntimeError:
        # A graph that is freed already, of which torch says so itself.  Not an empty list: after any other failure,
        # such as that of a hook for saved tensors, the backward may go on, and must not be taken for a known one.
        return [Found(None, Term(Kind.OTHER))]


def ratio_of(weights: Sequence[float] | None, rank: int, given: float) -> float:
    """Between what a term weighs and what this backward is given."""
    if not given:
        return 0.0
    return 1.0 if weights is None else weights[rank] / given


def scaling_by(ratio: float) -> Callable[[Gradients], Gradients]:
    def scale(gradients: Gradients) -> Gradients:
        # Not times 0: a mean over nothing has no finite gradient.
        return tuple(one if one is None else one * ratio if ratio else torch.zeros_like(one) for one in gradients)

    return scale
