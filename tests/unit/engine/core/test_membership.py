"""Membership: a loss is reported once, with its first cause, and never by mistake."""

from __future__ import annotations

from undertow.engine.core.membership import Loss, Membership

SIZE = 3


def members(now: float = 100.0) -> Membership:
    return Membership(1, SIZE, silence_s=10.0, now=now)


def tick_through(membership: Membership, start: float, end: float) -> Loss | None:
    """Tick every second, as the engine does."""
    now = start
    while now < end:
        now += 1.0
        loss = membership.tick(now)
        if loss is not None:
            return loss
    return None


def test_a_peer_that_sends_is_not_lost() -> None:
    membership = members()
    for second in range(101, 200):
        membership.note_alive(0, second)
        membership.note_alive(2, second)
        assert membership.tick(second) is None


def test_a_silent_peer_is_lost_and_named_with_the_time() -> None:
    membership = members()
    loss = None
    for second in range(101, 120):
        membership.note_alive(2, second)
        loss = loss or membership.tick(second)
    assert loss is not None
    assert loss == Loss(0, 1, silent_s=11.0)
    assert membership.loss is loss


def test_exactly_the_timeout_is_still_alive() -> None:
    membership = members(now=100.0)
    assert tick_through(membership, 100.0, 110.0) is None
    assert tick_through(membership, 110.0, 111.0) is not None


def test_a_process_that_was_stopped_itself_blames_nobody() -> None:
    membership = members(now=100.0)
    tick_through(membership, 100.0, 105.0)
    assert membership.tick(500.0) is None
    assert tick_through(membership, 500.0, 501.0) is None


def test_a_peer_that_stays_silent_after_that_is_still_found() -> None:
    membership = members(now=100.0)
    membership.tick(500.0)
    loss = tick_through(membership, 500.0, 520.0)
    assert loss is not None
    assert loss.rank == 0


def test_the_first_cause_is_kept() -> None:
    membership = members()
    first = Loss(2, 1, "its connection broke")
    assert membership.lose(first) is first
    assert membership.lose(Loss(0, 1, "its connection broke as well")) is None
    assert tick_through(membership, 100.0, 200.0) is None
    assert membership.loss is first


def test_a_peer_that_left_in_order_is_no_loss() -> None:
    membership = members()
    membership.left(2)
    assert membership.lose(Loss(2, 1, "its connection closed")) is None
    assert membership.loss is None
    assert tick_through(membership, 100.0, 120.0) == Loss(0, 1, silent_s=11.0)


def test_a_worker_does_not_watch_itself() -> None:
    assert tick_through(Membership(0, 1, silence_s=1.0, now=0.0), 0.0, 50.0) is None
