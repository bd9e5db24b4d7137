"""The fake group of all tests: an implementation of `engine.interface.Group` in one thread, whose peers follow a rule.

The real coordinator decides agreements.  A subclass may decide when a contribution is answered, or change what the
peers contribute.  tests/contract/test_group.py checks all of them against the contracts of the interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from undertow.engine.client.helper import OpenWork
from undertow.engine.client.waiting import Ticket
from undertow.engine.coordinator.agreement import Agreements, Keys
from undertow.engine.coordinator.messages import Arrive, TableProposal
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rate import Rate
from undertow.engine.core.rounds import Op
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Cut, Placement, Slice, TensorSpec, cut
from undertow.engine.interface import NamedCalls, TurnChannel, UnevenInputs
from undertow.engine.server.gathering import RankBytes
from undertow.errors import UndertowError, recast
from undertow.sizing import Sizes


def make_shape(size: int = 2, *, rank: int = 0, sizes: Sizes | None = None, **options: Any) -> Shape:
    """Return the shape of a group for tests, whose workers are all on one host."""
    options = {"job": 7, "credit_bytes": 0, "silence_timeout_s": 10.0, "stall_timeout_s": 60.0} | options
    return Shape(rank=rank, hosts=["host"] * size, sizes=sizes or Sizes(), **options)


class FakeGroup:
    """Rank 0 of a group whose other workers contribute multiples of its contributions: `times` has one for each."""

    def __init__(self, times: Sequence[float] = (1,), *, sizes: Sizes | None = None) -> None:
        self.rank = 0
        self.size = 1 + len(times)
        self.shape = make_shape(self.size, sizes=sizes)
        self.rate = Rate()
        self.open_work = OpenWork()
        self.error: UndertowError | None = None
        self.slices: dict[int, Slice] = {}  # all known slices, by key
        self.learned: list[Sequence[Slice]] = []
        self.answered: list[int] = []  # keys
        self.resized: list[int] = []
        self.released: list[RankBytes] = []
        self._total = 1 + sum(times)
        self._placement = Placement(self.shape.owners)
        self._agreements = Agreements(self.shape, Keys())
        self._count = 0  # number of agreements

    def configure(self, **options: Any) -> None:
        """Change options of the shape."""
        self.shape = replace(self.shape, **options)

    # Tables of tensors

    def register(
        self, label: str, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0
    ) -> list[Slice]:
        proposal = TableProposal(label, list(tensors), op, keep, keys)
        proposal.check()
        reply = self.agree("tensors", msgspec.msgpack.encode(proposal))
        how = msgspec.msgpack.decode(reply, type=Cut)
        slices = cut(tensors, how, op=op, keep=keep, placement=self._placement)
        self.slices |= {item.spec.key: item for item in slices}
        return slices

    def learn(self, slices: Sequence[Slice], *, label: str = "", tensors: Sequence[TensorSpec] = ()) -> None:
        self.learned.append(slices)
        self.slices |= {item.spec.key: item for item in slices}

    def discard(self, keys: range) -> None: ...

    def resize(self, slice_bytes: int) -> None:
        self.resized.append(slice_bytes)

    # Rounds

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        for contribution in contributions:
            self.deliver(contribution)

    def deliver(self, contribution: Contribution) -> None:
        if self.error is None:
            self.answer(contribution)
            contribution.on_result(contribution)

    def answer(self, contribution: Contribution) -> None:
        """Write the result of this contribution's round to its target."""
        self.answered.append(contribution.key)
        if self.slices[contribution.key].spec.op is Op.GATHER:
            contribution.gathered = [RankBytes(contribution.source, contribution.present)] * self.size
        elif contribution.source is not None and contribution.target is not None:
            factors = {Op.SUM: self._total, Op.MEAN: self._total / self.size, Op.COPY: 1}
            factor = factors[self.slices[contribution.key].spec.op]
            np.multiply(contribution.source, factor, out=contribution.target, casting="unsafe")

    def release(self, gathered: Sequence[RankBytes]) -> None:
        self.released += gathered

    # Waiting

    def check(self) -> None:
        if self.error is not None:
            raise recast(self.error, type(self.error))

    def wait_for(self, ticket: Ticket, reason: str = "", *, tensor: str = "") -> None:
        self.check()
        assert ticket.is_done, "everything is answered at once"

    # All ranks together

    def agree(self, matter: str, payload: bytes = b"") -> bytes:
        self.check()
        self._count += 1
        for rank in range(self.size):
            results = self._agreements.arrive(rank, Arrive(self._count, matter, payload))
        _, result = results[0]
        if result.mismatch:
            raise result.mismatch.make_error()
        return result.payload

    def barrier(self) -> None:
        self.agree("barrier")

    # Work beside the engine

    def aside(self, work: Callable[[], None]) -> None:
        try:
            work()
        except UndertowError as error:
            self.suspect(error)
        except Exception as error:
            self.suspect(UndertowError(f"the engine failed: {type(error).__name__}: {error}"))

    def start_helper(self) -> None: ...

    def suspect(self, error: UndertowError) -> None:
        self.error = self.error or error

    # For some frontends only

    @property
    def calls(self) -> NamedCalls:
        raise NotImplementedError

    @property
    def uneven(self) -> UnevenInputs:
        raise NotImplementedError

    @property
    def turns(self) -> TurnChannel:
        raise NotImplementedError
