"""Groups of some of the job's workers, formed by the group of all.

In: the ranks of a subset, and a call of all ranks that brings every rank's bytes to all.  Out: a group of its own
with connections of its own, in which the other ranks have no part; messages name its workers by their ranks in
the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from undertow.runtime import formation, process
from undertow.runtime.group import Group

# Bring some bytes, leave with those of every rank of the job, in rank order.
Exchange = Callable[[bytes], list[bytes]]


def form_subset(name: object, ranks: Sequence[int], exchange: Exchange) -> Group | None:
    """The group of these ranks, known to the process by `name`; None on the others.

    All ranks of the job call it, with the same ranks in ascending order.
    """
    world = process.default_group()
    if world.rank not in ranks:
        exchange(b"")
        return None

    def meet(card: bytes) -> list[bytes]:
        cards = exchange(card)
        return [cards[rank] for rank in ranks]

    def form() -> Group:
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

    return process.add_group(name, form)
