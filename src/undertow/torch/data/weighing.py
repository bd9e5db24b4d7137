"""Weighs the terms of a loss while its backward runs.

In: the tensors that a script passes to backward.  Out: the gradient of each term, scaled as `losses` decides.
At the start of every backward of a share, the ranks exchange small reports about their losses.  In a script that knows
of ranks, a backward that reaches no wrapped module, such as that of a probe on rank 0, concerns no other rank, and
nothing is exchanged.  All other backwards must be called equally often on all ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import torch

from undertow.decoding import Decoder
from undertow.engine.interface import Group
from undertow.errors import UndertowError
from undertow.sync.batches.losses import weigh
from undertow.sync.batches.reports import ReductionKind, Report, Term
from undertow.sync.broadcast import ByteGather
from undertow.torch.data.data_sharing import DataSharing
from undertow.torch.data.terms import FoundTerm, find_nodes, find_terms
from undertow.torch.passes.backward import reaches_wrapped

Gradients = tuple[torch.Tensor | None, ...]
_reports: Decoder[Report] = Decoder(Report, "the loss of another rank")
_SUMMED = (
    "the loss is a sum over the batch: it is summed over all workers, as in one process with the larger batch, so "
    "gradients grow with the number of workers (--batch split or UNDERTOW_BATCH=split leaves them as they are)"
)

_LABEL = "the losses of all ranks"
_EQUALLY_OFTEN = (
    "This worker waits in backward for the other workers' reports about their losses: all workers must call backward "
    "equally often for the parameters of a wrapped model. To compute other gradients on one worker only, use "
    "torch.autograd.grad or backward(inputs=...)"
)


class LossWeigher:
    """A weigher of the losses of one script."""

    def __init__(self, sharing: DataSharing) -> None:
        self._sharing = sharing
        self._gather: ByteGather | None = None  # of reports; created when first needed

    @contextmanager
    def weighing(self, tensors: Sequence[Any]) -> Iterator[None]:
        """Weigh each term of a backward of these tensors inside the block; the caller applies the share's weight."""
        sharing = self._sharing
        if sharing.group is None or sharing.samples is None or sharing.size == 1:
            yield
            return
        terms = _find(tensors)
        ratios = _Ratios(lambda: self._decide(terms))
        with ExitStack() as stack:
            if not sharing.knows_ranks:
                ratios.find()
            else:  # only the running pass knows which parameters it reaches
                for node in find_nodes(tensors):
                    stack.callback(node.register_prehook(ratios.before_first).remove)
            for index, found in enumerate(terms):
                if found.node and ratios.may_scale(index):
                    stack.callback(found.node.register_prehook(ratios.scaling(index)).remove)
            yield

    def _decide(self, terms: Sequence[FoundTerm]) -> list[float]:
        """Return the ratios that scale the gradients of the terms; terms beyond the list are not scaled."""
        sharing = self._sharing
        assert sharing.group is not None
        assert sharing.samples is not None
        if sharing.knows_ranks and not reaches_wrapped():
            return []
        reports = self.exchange(sharing.group, Report(sharing.samples, tuple(found.term for found in terms)))
        weights = weigh(reports, batch=sharing.batch if sharing.is_split else None)
        for doubt in weights.doubts:
            sharing.announce(doubt)
        if weights.has_sums and not sharing.is_split:
            sharing.announce(_SUMMED)
        return [ratio_of(one, sharing.rank, sharing.weight) for one in weights.weights]

    def exchange(self, group: Group, report: Report) -> list[Report]:
        """Send this rank's report to all others, and return the reports of all ranks."""
        if self._gather is None:
            self._gather = ByteGather(group, _LABEL)
        self._gather.send(msgspec.msgpack.encode(report))
        try:
            return [_reports.decode(body) for body in self._gather.receive(_LABEL)]
        except UndertowError as error:
            if group.error is not None:
                raise
            # The group works: some rank has not called this backward.
            raise UndertowError(f"{error}. {_EQUALLY_OFTEN}") from None


class _Ratios:
    """The ratios that scale the gradients of all terms in one backward pass, decided once, when first needed."""

    def __init__(self, decide: Callable[[], list[float]]) -> None:
        self._decide = decide
        self._ratios: list[float] | None = None
        self._lock = threading.Lock()  # a backward pass over several devices runs in several threads

    def find(self) -> list[float]:
        with self._lock:
            if self._ratios is None:
                self._ratios = self._decide()
            return self._ratios

    def may_scale(self, index: int) -> bool:
        return self._ratios is None or self._ratio(index) != 1

    def before_first(self, gradients: Gradients) -> None:
        """Decide at the first node of a backward, so that a loss without any term also takes part."""
        self.find()

    def scaling(self, index: int) -> Callable[[Gradients], Gradients | None]:
        def scale(gradients: Gradients) -> Gradients | None:
            ratio = self._ratio(index)
            return None if ratio == 1 else scaling_by(ratio)(gradients)

        return scale

    def _ratio(self, index: int) -> float:
        ratios = self.find()
        return ratios[index] if index < len(ratios) else 1.0  # a rank with weight 0 may have other terms


def _find(tensors: Sequence[Any]) -> list[FoundTerm]:
    try:
        return find_terms(tensors)
    except RuntimeError:
        # Usually the graph is already freed, and torch will raise an error.  Not an empty list: after another failure,
        # such as that of a saved-tensor hook, backward may still run, and its terms must count as unknown.
        return [FoundTerm(None, Term(ReductionKind.OTHER))]


def ratio_of(weights: Sequence[float] | None, rank: int, given: float) -> float:
    """Return the ratio of a term's weight on this rank to the weight that backward is given."""
    if not given:
        return 0.0
    return 1.0 if weights is None else weights[rank] / given


def scaling_by(ratio: float) -> Callable[[Gradients], Gradients]:
    def scale(gradients: Gradients) -> Gradients:
        # Not multiplied by 0: a mean over nothing has no finite gradient.
        return tuple(one if one is None else one * ratio if ratio else torch.zeros_like(one) for one in gradients)

    return scale
