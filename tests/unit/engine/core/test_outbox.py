"""The outbox: strict order, and a credit that is never exceeded."""

from __future__ import annotations

import pytest

from undertow.engine.core.outbox import Outbox, QueuedFrame


def frame(name: str, size_bytes: int = 10, peer: int = 0) -> QueuedFrame:
    return QueuedFrame(peer, name, None, size_bytes)


def drain(outbox: Outbox) -> list[str]:
    names = []
    while (taken := outbox.take()) is not None:
        names.append(taken.header)
    return names


def test_an_empty_outbox_gives_nothing() -> None:
    outbox = Outbox(100)
    assert outbox.take() is None
    assert outbox.in_flight_bytes == 0


def test_the_lower_number_goes_first() -> None:
    outbox = Outbox(100)
    for priority in (3, 1, 2, 0):
        outbox.put([frame(f"p{priority}")], priority)
    assert drain(outbox) == ["p0", "p1", "p2", "p3"]


def test_frames_that_come_together_leave_in_their_order_and_let_a_more_urgent_one_pass() -> None:
    outbox = Outbox(1000)
    outbox.put([frame("before")], 5)
    outbox.put([frame("a", peer=1), frame("b", peer=2), frame("c", peer=3)], 5)
    outbox.put([], 0)
    outbox.put([frame("after")], 5)
    assert len(outbox) == 5
    assert [taken.header for taken in (outbox.take(), outbox.take()) if taken] == ["before", "a"]
    outbox.put([frame("urgent")], 4)
    assert len(outbox) == 4
    assert drain(outbox) == ["urgent", "b", "c", "after"]
    assert len(outbox) == 0


def test_equal_numbers_leave_in_the_order_they_came() -> None:
    outbox = Outbox(10_000)
    names = [f"slice {number}" for number in range(200)]
    for name in names:
        outbox.put([frame(name)], 5)
    assert drain(outbox) == names


def test_a_frame_put_later_overtakes_only_what_was_not_taken() -> None:
    outbox = Outbox(20)
    for name in ("a", "b", "c"):
        outbox.put([frame(name)], 1)
    assert drain(outbox) == ["a", "b"]
    outbox.put([frame("urgent")], 0)
    outbox.acknowledge(0, 20)
    assert drain(outbox) == ["urgent", "c"]


def test_no_more_than_the_credit_is_in_flight() -> None:
    outbox = Outbox(25)
    for name in ("a", "b", "c"):
        outbox.put([frame(name)])
    assert drain(outbox) == ["a", "b"]
    assert outbox.in_flight_bytes == 20
    assert len(outbox) == 1


def test_a_frame_may_use_the_credit_to_the_last_byte() -> None:
    outbox = Outbox(20)
    outbox.put([frame("a")])
    outbox.put([frame("b")])
    assert drain(outbox) == ["a", "b"]


def test_a_smaller_frame_never_passes_a_larger_more_urgent_one_by() -> None:
    outbox = Outbox(100)
    outbox.put([frame("first", 60)])
    outbox.take()
    outbox.put([frame("large", 50)], 1)
    outbox.put([frame("small", 1)], 2)
    outbox.put([frame("empty", 0)], 3)
    assert outbox.take() is None
    outbox.acknowledge(0, 60)
    assert drain(outbox) == ["large", "small", "empty"]


def test_a_frame_larger_than_the_credit_leaves_alone() -> None:
    outbox = Outbox(10)
    outbox.put([frame("small", 4)])
    outbox.put([frame("huge", 1000)])
    outbox.put([frame("next", 4)])
    assert drain(outbox) == ["small"]
    outbox.acknowledge(0, 4)
    assert drain(outbox) == ["huge"]
    outbox.acknowledge(0, 1004)
    assert drain(outbox) == ["next"]


def test_frames_without_bytes_need_no_credit() -> None:
    outbox = Outbox(10)
    outbox.put([frame("full", 10)])
    for number in range(5):
        outbox.put([frame(f"empty {number}", 0)])
    assert len(drain(outbox)) == 6


def test_credit_comes_back_per_peer_in_parts() -> None:
    outbox = Outbox(30)
    for peer in (1, 2, 1):
        outbox.put([frame("x", 10, peer)])
    drain(outbox)
    assert outbox.acknowledge(1, 10)
    assert outbox.acknowledge(2, 10)
    assert outbox.in_flight_bytes == 10
    assert outbox.acknowledge(1, 20)
    assert outbox.in_flight_bytes == 0


def test_the_same_acknowledgement_twice_gives_credit_once() -> None:
    outbox = Outbox(30)
    outbox.put([frame("a")])
    outbox.put([frame("b")])
    drain(outbox)
    assert outbox.acknowledge(0, 10)
    assert outbox.acknowledge(0, 10)
    assert outbox.in_flight_bytes == 10


@pytest.mark.parametrize(("peer", "received"), [(0, 21), (0, 9), (0, -1), (1, 1), (7, 2**60)])
def test_a_bogus_acknowledgement_is_refused_and_changes_nothing(peer: int, received: int) -> None:
    outbox = Outbox(30)
    outbox.put([frame("a")])
    outbox.put([frame("b")])
    drain(outbox)
    outbox.acknowledge(0, 10)
    assert not outbox.acknowledge(peer, received)
    assert outbox.in_flight_bytes == 10
    assert outbox.acknowledge(0, 20)


def test_what_waits_cannot_be_acknowledged_yet() -> None:
    outbox = Outbox(10)
    outbox.put([frame("a")])
    outbox.put([frame("b")])
    drain(outbox)
    assert not outbox.acknowledge(0, 20)
