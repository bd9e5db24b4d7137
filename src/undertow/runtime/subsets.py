"""Groups of some of the job's workers, formed by the group of all.

In: the ranks of a subset, and a call of all ranks that brings every rank's bytes to all.  Out: a group of its own
with connections of its own, in which the other ranks have no part; messages name its workers by their ranks in
the job.  It is there on all its ranks or on none: if one of them cannot join, all ranks of the job hear why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from undertow.coordinator.meeting import name_ranks
from undertow.core.decoding import Decoder, Seconds
from undertow.errors import UndertowError
from undertow.runtime import formation, process
from undertow.runtime.group import Group

MOST_REASONS = 3

# Under this title bring some bytes, leave with those of every rank of the job, in rank order.
Exchange = Callable[[str, bytes], list[bytes]]


class _Bid(msgspec.Struct, frozen=True):
    """What a rank brings to the meeting of a subset: its card, nothing, or that it cannot come."""

    card: bytes = b""
    can_come: bool = True


class _Failure(msgspec.Struct, frozen=True):
    """Why a rank could not join, in words that are empty if another one has said it."""

    text: str
    after_s: Seconds  # since it began


_bids: Decoder[_Bid] = Decoder(_Bid, "what another worker brings to a group")
_failures: Decoder[_Failure | None] = Decoder(_Failure | None, "how another worker has joined a group")


class _Unmet(UndertowError):
    """Another rank could not come, and says why itself."""


def form_subset(name: object, ranks: Sequence[int], exchange: Exchange) -> Group | None:
    """The group of these ranks, known to the process by `name`; None on the others.

    All ranks of the job call it, with the same ranks in ascending order.  If a rank fails, all raise `UndertowError`
    with its reason, and the group is on none of them.
    """
    world = process.default_group()
    gathering = _Gathering(ranks, exchange)
    own: Group | None = None
    failure: Exception | None = None
    began_s = time.monotonic()
    try:
        if world.rank in ranks:
            own = process.add_group(name, lambda: _form(gathering.meet, name, ranks))
        else:
            gathering.meet(b"")
    except Exception as error:
        if world.waiters.error is not None:
            raise  # the job itself has failed: there is nobody to agree with
        failure = error
    try:
        gathering.miss()
        told = None if failure is None else _Failure(_describe(failure), time.monotonic() - began_s)
        reasons = _agree(told, exchange)
        if reasons:
            raise UndertowError(f"{name_ranks(ranks)} cannot form a group: {reasons}") from failure
    except BaseException:
        if own is not None:
            process.remove_group(name)
        raise
    return own


class _Gathering:
    """The meeting of a subset's ranks, to which all ranks of the job come once, whatever happens."""

    def __init__(self, ranks: Sequence[int], exchange: Exchange) -> None:
        self._ranks = ranks
        self._exchange = exchange
        self._was_there = False

    def meet(self, card: bytes) -> list[bytes]:
        bids = self._come(_Bid(card))
        if not all(bid.can_come for bid in bids):
            raise _Unmet("another rank could not come")
        return [bids[rank].card for rank in self._ranks]

    def miss(self) -> None:
        """Tell the others, if this rank has failed before it could meet them."""
        if not self._was_there:
            self._come(_Bid(can_come=False))

    def _come(self, bid: _Bid) -> list[_Bid]:
        self._was_there = True
        return [_bids.decode(data) for data in self._exchange("addresses", msgspec.msgpack.encode(bid))]


def _form(meet: formation.Meet, name: object, ranks: Sequence[int]) -> Group:
    world = process.default_group()
    return formation.form(
        meet,
        name=f"{name}",
        rank=ranks.index(world.rank),
        size=len(ranks),
        settings=process.settings(),
        loop=process.loop(),
        address=world.address,
        names=ranks,
    )


def _describe(error: Exception) -> str:
    if isinstance(error, _Unmet):
        return ""
    kind = type(error).__name__
    return str(error) or kind if isinstance(error, UndertowError) else f"{kind}: {error}"


def _agree(own: _Failure | None, exchange: Exchange) -> str:
    """Why it has failed, the same on all ranks; empty if it has not."""
    told = [_failures.decode(data) for data in exchange("formed", msgspec.msgpack.encode(own))]
    failed = [(failure.after_s, rank, failure.text) for rank, failure in enumerate(told) if failure is not None]
    words = [f"rank {rank}: {text}" for _, rank, text in sorted(failed) if text]  # the first one is the cause
    return "; ".join(words[:MOST_REASONS])
