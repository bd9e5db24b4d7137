"""All-gather of bytes, and broadcast of one rank's arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.support.fake_group import FakeGroup
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import TensorSpec
from undertow.engine.server.gathering import RankBytes
from undertow.sizing import Sizes
from undertow.sync.broadcast import ArrayBroadcast, ByteGather


class Others(FakeGroup):
    """A group of two, seen from one of its ranks; the other rank always holds sevens."""

    def __init__(self, rank: int = 0) -> None:
        super().__init__(sizes=Sizes(fixed=64))
        self.rank = rank
        self.sent: list[Contribution] = []

    def answer(self, contribution: Contribution) -> None:
        self.sent.append(contribution)
        if self.slices[contribution.key].spec.op is Op.GATHER:
            pieces = [RankBytes(contribution.source, 1), RankBytes(np.full(2, 7, np.uint8), 1)]
            contribution.gathered = pieces if self.rank == 0 else pieces[::-1]
        elif contribution.target is not None:
            contribution.target[:] = 7


@pytest.mark.parametrize("rank", [0, 1])
def test_bytes_arrive_in_rank_order_and_memory_of_other_ranks_is_released(rank: int) -> None:
    group = Others(rank)
    gather = ByteGather(group, "reports")
    for body in (b"first", b""):
        assert not gather.is_sent
        gather.send(body)
        assert gather.is_sent
        bodies = gather.receive("for the test")
        assert bodies == ([body, b"\7\7"] if rank == 0 else [b"\7\7", body])
    assert len(group.released) == 2
    assert all(piece.array is not None and piece.array[0] == 7 for piece in group.released)


def make_broadcast(group: FakeGroup) -> tuple[ArrayBroadcast, list[np.ndarray[tuple[int], np.dtype[np.uint8]]]]:
    sizes = [200, 3, 5]  # four slices, and two tensors fused into one
    specs = [TensorSpec(f"array {size}", (size,), DType.BYTES, size) for size in sizes]
    return ArrayBroadcast(group, "arrays", specs), [np.full(size, 1, np.uint8) for size in sizes]


@pytest.mark.parametrize(("rank", "source", "changes"), [(0, 0, False), (1, 0, True), (0, 1, True), (0, None, True)])
def test_all_ranks_but_the_source_receive_its_bytes(rank: int, source: int | None, changes: bool) -> None:
    group = Others(rank)
    broadcast, arrays = make_broadcast(group)
    assert broadcast.run(arrays, source=source) is changes
    assert {int(value) for array in arrays for value in array} == ({7} if changes else {1})
    offers = source is None or source == rank
    assert {one.source is not None for one in group.sent} == {offers}


def test_the_source_waits_only_before_it_sends_again() -> None:
    waits: list[str] = []

    class Slow(Others):
        def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
            self.sent += contributions

        def wait_for(self, ticket: object, reason: str = "", *, tensor: str = "") -> None:
            waits.append(reason)

    broadcast, arrays = make_broadcast(Slow())
    broadcast.run(arrays)
    assert waits == []
    broadcast.wait()
    assert waits == ["arrays"]
