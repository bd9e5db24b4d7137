"""Groups of some of the job's workers, formed by the group of all.

In: the ranks of a subset, and a call of all ranks that exchanges bytes of every rank.  Out: a group with connections of
its own, whose messages name the workers by their ranks in the job.  Either all its ranks join it or none: if one
cannot, all ranks of the job are told why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from undertow.decoding import Decoder, Rank
from undertow.engine.client import formation
from undertow.engine.client.group import ConnectedGroup
from undertow.errors import PeerLost, UndertowError, name_ranks
from undertow.runtime import process

MOST_REASONS = 3

# Brings bytes under a title; returns those of every rank of the job, in rank order.
Exchange = Callable[[str, bytes], list[bytes]]


class _Bid(msgspec.Struct, frozen=True):
    """Contribution of a rank to the rendezvous of a subset: its card, nothing, or that it cannot come."""

    card: bytes = b""
    can_come: bool = True


class _Failure(msgspec.Struct, frozen=True):
    """Reason for which a rank could not join, and the ranks that were lost to it."""

    text: str
    lost: tuple[Rank, ...] = ()


_bids: Decoder[_Bid] = Decoder(_Bid, "what another worker brings to a group")
_failures: Decoder[_Failure | None] = Decoder(_Failure | None, "how another worker has joined a group")


def form_subset(name: object, ranks: Sequence[int], exchange: Exchange) -> ConnectedGroup | None:
    """Form the group of these ranks, which the process knows by `name`; return None on other ranks.

    All ranks of the job call it, with the same ranks in ascending order.  If a rank fails, all raise `UndertowError`
    with its reason, and the group is on none of them.
    """
    world = process.default_group()
    gathering = _Gathering(ranks, exchange)
    own: ConnectedGroup | None = None
    failure: Exception | None = None
    try:
        if world.rank in ranks:
            own = process.add_group(name, lambda: _form(gathering.meet, name, ranks))
        else:
            gathering.meet(b"")
    except Exception as error:
        if world.error is not None:
            raise  # the job itself has failed: no rank is left to agree with
        failure = error
    try:
        gathering.miss()
        reasons = _agree(None if failure is None else _describe(failure), exchange)
        if reasons:
            raise UndertowError(f"{name_ranks(ranks)} cannot form a group: {reasons}") from failure
    except BaseException:
        if own is not None:
            process.remove_group(name)
        raise
    return own


class _Gathering:
    """Rendezvous of a subset's ranks, to which every rank of the job comes once, whatever happens."""

    def __init__(self, ranks: Sequence[int], exchange: Exchange) -> None:
        self._ranks = ranks
        self._exchange = exchange
        self._was_there = False

    def meet(self, card: bytes) -> list[bytes]:
        bids = self._come(_Bid(card))
        absent = [rank for rank, bid in enumerate(bids) if not bid.can_come]
        if absent:
            raise PeerLost(ranks=absent, event="could not come to form a group")
        return [bids[rank].card for rank in self._ranks]

    def miss(self) -> None:
        """Tell the other ranks if this one has failed before it could meet them."""
        if not self._was_there:
            self._come(_Bid(can_come=False))

    def _come(self, bid: _Bid) -> list[_Bid]:
        self._was_there = True
        return [_bids.decode(data) for data in self._exchange("addresses", msgspec.msgpack.encode(bid))]


def _form(meet: formation.Meet, name: object, ranks: Sequence[int]) -> ConnectedGroup:
    world = process.default_group()
    return formation.form(
        meet,
        name=f"{name}",
        settings=replace(process.settings(), rank=ranks.index(world.rank), world_size=len(ranks)),
        loop=process.loop(),
        address=world.shape.address,
        names=ranks,
    )


def _describe(error: Exception) -> _Failure:
    kind = type(error).__name__
    text = str(error) or kind if isinstance(error, UndertowError) else f"{kind}: {error}"
    return _Failure(text, error.ranks if isinstance(error, PeerLost) else ())


def _agree(own: _Failure | None, exchange: Exchange) -> str:
    """Return why the group could not be formed, the same on all ranks; empty if it was formed."""
    told = [_failures.decode(data) for data in exchange("formed", msgspec.msgpack.encode(own))]
    failures = {rank: failure for rank, failure in enumerate(told) if failure is not None}
    # A rank that fails is lost to those that wait for it: theirs are consequences, and its own reason is the cause.
    causes = {rank: failure for rank, failure in failures.items() if failures.keys().isdisjoint(failure.lost)}
    words = [f"rank {rank}: {failure.text}" for rank, failure in (causes or failures).items()]
    return "; ".join(words[:MOST_REASONS])
