"""Any puts and acknowledgements: strict order, and never more in flight than the credit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undertow.engine.core.outbox import Outbox, QueuedFrame

PUTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 2)), max_size=25)


@given(PUTS)
def test_with_enough_credit_frames_leave_sorted_by_priority_then_arrival(puts: list[tuple[int, int, int]]) -> None:
    outbox = Outbox(10**9)
    for sequence, (priority, size_bytes, peer) in enumerate(puts):
        outbox.put([QueuedFrame(peer, (priority, sequence), None, size_bytes)], priority)
    left = []
    while (frame := outbox.take()) is not None:
        left.append(frame.header)
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
            frame = QueuedFrame(peer, (priority, sequence), None, size_bytes)
            outbox.put([frame], priority)
            waiting.append(frame)
        elif move == "take":
            flying = sum(frame.size_bytes for frame in in_flight)
            best = min(waiting, key=lambda frame: frame.header, default=None)
            fits = best is not None and (not flying or flying + best.size_bytes <= credit_bytes)
            assert outbox.take() is (best if fits else None)
            if fits:
                waiting.remove(best)
                in_flight.append(best)
        else:
            # A peer receives what was sent to it in order.
            peer = random.choice(in_flight).peer
            frame = next(each for each in in_flight if each.peer == peer)
            in_flight.remove(frame)
            received[frame.peer] += frame.size_bytes
            assert outbox.acknowledge(frame.peer, received[frame.peer])
        flying = sum(frame.size_bytes for frame in in_flight)
        assert outbox.in_flight_bytes == flying
        assert flying <= credit_bytes or sum(frame.size_bytes > 0 for frame in in_flight) == 1
        assert len(outbox) == len(waiting)
    assert outbox.in_flight_bytes == 0


@given(PUTS, st.integers(1, 100), st.data())
def test_credit_never_runs_out_with_peers_that_answer_only_requests(puts, credit_bytes, data) -> None:  # type: ignore[no-untyped-def]
    outbox = Outbox(credit_bytes)
    outbox.resize(credit_bytes, max((size_bytes for _, size_bytes, _ in puts), default=0))
    for _, size_bytes, peer in puts:
        outbox.put([QueuedFrame(peer, None, None, size_bytes)])
    sent, told = [0, 0, 0], [0, 0, 0]
    while waiting := len(outbox):
        while (frame := outbox.take()) is not None:
            sent[frame.peer] += frame.size_bytes
            if outbox.wants_receipt(frame):
                told[frame.peer] = sent[frame.peer]
        assert len(outbox) < waiting, "all receipts have come that were asked for, and the next frame does not fit"
        if data.draw(st.booleans()):
            peer = data.draw(st.integers(0, 2))
            told[peer] = sent[peer]  # another frame carried a receipt along
        for peer, received_bytes in enumerate(told):
            assert outbox.acknowledge(peer, received_bytes)


def test_a_receipt_is_requested_only_if_too_much_is_uncovered() -> None:
    outbox = Outbox(120)
    outbox.resize(120, 10)
    frames = [QueuedFrame(peer, None, None, 10) for peer in (0, 1, 2, 0, 1, 2, 0, 1, 2)]
    for frame in frames:
        outbox.put([frame])
    asked = []
    while (frame := outbox.take()) is not None:  # type: ignore[assignment]
        asked.append(outbox.wants_receipt(frame))
    assert asked == [False] * 6 + [True, False, False]
    # What was received needs no receipt any more.
    for peer in (0, 1, 2):
        outbox.acknowledge(peer, 30)
    for frame in frames:
        outbox.put([frame])
    while (frame := outbox.take()) is not None:  # type: ignore[assignment]
        asked.append(outbox.wants_receipt(frame))
    assert asked[9:] == asked[:9]
