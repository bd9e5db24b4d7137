"""Groups of some of the job's workers, formed with the help of the group of all workers.

In: the ranks of a subset, and a collective that exchanges bytes between all ranks.  Out: a group with its own
connections, whose messages name workers by their ranks in the job.  Either all ranks of the subset join the group or
none: if one cannot, all ranks of the job get the reason.
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

# Takes a title and this rank's bytes; returns the bytes of every rank of the job, in rank order.
Exchange = Callable[[str, bytes], list[bytes]]


class SubsetError(UndertowError):
    """The failure of some ranks to form a group."""

    def __init__(self, message: str, *, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)  # those whose failures are the causes


class _Entry(msgspec.Struct, frozen=True):
    """Contribution of a rank to the rendezvous of a subset: its contact, nothing, or that it cannot join."""

    card: bytes = b""  # contact of the worker
    can_come: bool = True


class _Failure(msgspec.Struct, frozen=True):
    """Reason why a rank could not join, and the ranks that it has lost."""

    text: str
    lost: tuple[Rank, ...] = ()


_entries: Decoder[_Entry] = Decoder(_Entry, "the contact of another worker for a group")
_failures: Decoder[_Failure | None] = Decoder(_Failure | None, "the result of another worker for a group")


def form_subset(name: object, ranks: Sequence[int], exchange: Exchange) -> ConnectedGroup | None:
    """Form the group of these ranks, which the process keeps under `name`; return None on other ranks.

    All ranks of the job must call it, with the same ranks in ascending order.  If a rank fails, all of them raise
    `SubsetError` with its reason, and none of them has the group.
    """
    world = process.default_group()
    rendezvous = _SubsetRendezvous(ranks, exchange)
    own: ConnectedGroup | None = None
    failure: Exception | None = None
    try:
        if world.rank in ranks:
            own = process.add_group(name, lambda: _form(rendezvous.meet, name, ranks))
        else:
            rendezvous.meet(b"")
    except Exception as error:
        if world.error is not None:
            raise  # the job has failed: no rank is left to agree with
        failure = error
    try:
        rendezvous.decline()
        causes = _agree(None if failure is None else _describe(failure), exchange)
        if causes:
            message = f"{name_ranks(ranks)} cannot form a group: {_list_causes(causes)}"
            raise SubsetError(message, ranks=list(causes)) from failure
    except BaseException:
        if own is not None:
            process.remove_group(name)
        raise
    return own


class _SubsetRendezvous:
    """Rendezvous of a subset's ranks, in which every rank of the job takes part exactly once."""

    def __init__(self, ranks: Sequence[int], exchange: Exchange) -> None:
        self._ranks = ranks
        self._exchange = exchange
        self._has_taken_part = False

    def meet(self, contact: bytes) -> list[bytes]:
        entries = self._take_part(_Entry(contact))
        absent = [rank for rank, entry in enumerate(entries) if not entry.can_come]
        if absent:
            raise PeerLost(ranks=absent, event="could not come to form a group")
        return [entries[rank].card for rank in self._ranks]

    def decline(self) -> None:
        """Inform the other ranks if this rank has failed before it could meet them."""
        if not self._has_taken_part:
            self._take_part(_Entry(can_come=False))

    def _take_part(self, entry: _Entry) -> list[_Entry]:
        self._has_taken_part = True
        return [_entries.decode(data) for data in self._exchange("addresses", msgspec.msgpack.encode(entry))]


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


def _agree(own: _Failure | None, exchange: Exchange) -> dict[int, _Failure]:
    """Return why the group could not be formed, by rank, the same on all ranks; empty if it was formed."""
    results = [_failures.decode(data) for data in exchange("formed", msgspec.msgpack.encode(own))]
    failures = {rank: failure for rank, failure in enumerate(results) if failure is not None}
    # A rank that fails is lost to the ranks that wait for it: their failures are consequences, its own is a cause.
    causes = {rank: failure for rank, failure in failures.items() if failures.keys().isdisjoint(failure.lost)}
    return causes or failures


def _list_causes(causes: dict[int, _Failure]) -> str:
    words = [f"rank {rank}: {failure.text}" for rank, failure in causes.items()]
    return "; ".join(words[:MOST_REASONS])
