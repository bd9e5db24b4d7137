"""Whatever is put and whenever it is acknowledged: strict order, and never more than the credit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undertow.core.outbox import Outbox, Parcel

PUTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 2)), max_size=25)


@given(PUTS)
def test_with_enough_credit_parcels_leave_sorted_by_priority_then_arrival(puts: list[tuple[int, int, int]]) -> None:
    outbox = Outbox(10**9)
    for sequence, (priority, size_bytes, peer) in enumerate(puts):
        outbox.put(Parcel(peer, (priority, sequence), None, size_bytes), priority)
    left = []
    while (parcel := outbox.take()) is not None:
        left.append(parcel.header)
    assert left == sorted(left)
    assert len(left) == len(puts)


@given(PUTS, st.integers(1, 60), st.randoms(use_true_random=False))
def test_any_mix_of_puts_takes_and_acknowledgements_keeps_the_rules(puts, credit_bytes, random) -> None:  # type: ignore[no-untyped-def]
    outbox = Outbox(credit_bytes)
    coming, waiting, in_flight, received = list(enumerate(puts)), [], [], [0, 0, 0]
    while coming or waiting or in_flight:
        move = random.choice(["put"] * bool(coming) + ["take"] * bool(waiting) + ["acknowledge"] * bool(in_flight))
        if move == "put":
            sequence, (priority, size_bytes, peer) = coming.pop(0)
            parcel = Parcel(peer, (priority, sequence), None, size_bytes)
            outbox.put(parcel, priority)
            waiting.append(parcel)
        elif move == "take":
            flying = sum(parcel.size_bytes for parcel in in_flight)
            best = min(waiting, key=lambda parcel: parcel.header, default=None)
            fits = best is not None and (not flying or flying + best.size_bytes <= credit_bytes)
            assert outbox.take() is (best if fits else None)
            if fits:
                waiting.remove(best)
                in_flight.append(best)
        else:
            # A peer receives what was sent to it in order.
            peer = random.choice(in_flight).peer
            parcel = next(each for each in in_flight if each.peer == peer)
            in_flight.remove(parcel)
            received[parcel.peer] += parcel.size_bytes
            assert outbox.acknowledge(parcel.peer, received[parcel.peer])
        flying = sum(parcel.size_bytes for parcel in in_flight)
        assert outbox.in_flight_bytes == flying
        assert flying <= credit_bytes or sum(parcel.size_bytes > 0 for parcel in in_flight) == 1
        assert len(outbox) == len(waiting)
    assert outbox.in_flight_bytes == 0
