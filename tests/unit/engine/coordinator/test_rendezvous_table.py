"""RendezvousTable, without sockets: the participants, their replies and the deadlines."""

from __future__ import annotations

import itertools

import pytest

from undertow.bounds import TIMEOUT_S
from undertow.engine.coordinator.rendezvous_table import Join, JoinFailure, RendezvousTable


def join(rank: int, size: int = 3, *, name: str = "m", timeout_s: float = 10.0, left_s: float | None = None) -> Join:
    return Join(name, rank, size, f"payload {rank}".encode(), timeout_s, timeout_s if left_s is None else left_s)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_any_arrival_order_gives_payloads_in_rank_order(order: tuple[int, ...]) -> None:
    table = RendezvousTable()
    replies = [table.join(f"guest {rank}", join(rank), 0.0) for rank in order]
    assert replies[:2] == [[], []]
    assert {who for who, _ in replies[2]} == {"guest 0", "guest 1", "guest 2"}
    assert all(reply.payloads == [b"payload 0", b"payload 1", b"payload 2"] for _, reply in replies[2])


def test_a_rendezvous_of_one_is_complete_at_once() -> None:
    assert RendezvousTable().join("a", join(0, 1), 0.0)[0][1].payloads == [b"payload 0"]


def test_a_name_can_be_used_again_also_with_another_size() -> None:
    table = RendezvousTable()
    for size in (2, 3, 1):
        replies = [table.join((size, rank), join(rank, size), 0.0) for rank in range(size)]
        assert len(replies[-1]) == size
    assert table.next_deadline_s() is None


def test_rendezvous_with_different_names_do_not_mix() -> None:
    table = RendezvousTable()
    assert table.join("a", join(0, 2, name="x"), 0.0) == []
    assert table.join("b", join(1, 2, name="y"), 0.0) == []
    assert len(table.join("c", join(1, 2, name="x"), 0.0)) == 2


def test_who_leaves_is_no_longer_counted() -> None:
    table = RendezvousTable()
    table.join("a", join(0), 0.0)
    table.join("b", join(1), 0.0)
    table.leave("b")
    assert table.join("c", join(2), 0.0) == []
    assert len(table.join("b again", join(1), 0.0)) == 3


def test_leaving_without_a_seat_is_harmless() -> None:
    table = RendezvousTable()
    table.leave("nobody")
    table.join("a", join(0, 1), 0.0)
    table.leave("a")


def test_the_last_one_to_leave_ends_the_rendezvous() -> None:
    table = RendezvousTable()
    table.join("a", join(0, 3), 0.0)
    table.leave("a")
    assert table.join("b", join(0, 2), 0.0) == []


def test_a_taken_rank_is_refused_to_the_second_only() -> None:
    table = RendezvousTable()
    table.join("a", join(1), 0.0)
    [(who, reply)] = table.join("b", join(1), 0.0)
    assert (who, reply.failure) == ("b", JoinFailure.TAKEN)
    assert "rank 1 of 3 is taken" in reply.text
    table.leave("b")
    table.join("c", join(0), 0.0)
    assert len(table.join("d", join(2), 0.0)) == 3


def test_another_size_is_refused_with_both_numbers() -> None:
    table = RendezvousTable()
    table.join("a", join(0, 3), 0.0)
    [(who, reply)] = table.join("b", join(1, 4), 0.0)
    assert (who, reply.failure) == ("b", JoinFailure.DISAGREE)
    assert "expects 4" in reply.text
    assert "rank 0, which came earlier, expected 3" in reply.text


def test_an_impossible_rank_is_refused() -> None:
    [(_, reply)] = RendezvousTable().join("a", join(3, 3), 0.0)
    assert reply.failure is JoinFailure.TAKEN


def test_after_a_deadline_all_replies_name_present_and_absent_ranks() -> None:
    table = RendezvousTable()
    table.join("a", join(0, 4, timeout_s=30), 0.0)
    table.join("b", join(1, 4, timeout_s=30), 5.0)
    assert table.next_deadline_s() == 30.0
    assert table.expire(29.9) == []
    replies = table.expire(30.0)
    assert [who for who, _ in replies] == ["a", "b"]
    assert {reply.failure for _, reply in replies} == {JoinFailure.ABSENT}
    assert "of 4 did not arrive within 30 s (ranks 0 and 1 did)" in replies[0][1].text
    assert replies[0][1].ranks == [2, 3]
    assert table.next_deadline_s() is None


def test_the_message_has_the_whole_timeout_not_the_time_left() -> None:
    table = RendezvousTable()
    table.join("a", join(0, 2, timeout_s=30, left_s=29.37), 100.0)
    assert table.next_deadline_s() == pytest.approx(129.37)
    assert "within 30 s" in table.expire(130.0)[0][1].text


def test_a_deadline_of_one_rendezvous_leaves_the_others_alone() -> None:
    table = RendezvousTable()
    table.join("a", join(0, name="short", timeout_s=1), 0.0)
    table.join("b", join(0, name="long", timeout_s=9), 0.0)
    assert [who for who, _ in table.expire(2.0)] == ["a"]
    assert table.next_deadline_s() == 9.0


@pytest.mark.parametrize("left_s", [1e300, float("inf"), float("nan")])
def test_a_guest_that_would_wait_for_ever_waits_as_long_as_the_kernel_can(left_s: float) -> None:
    table = RendezvousTable()
    assert table.join("a", join(0, 2, left_s=left_s), 5.0) == []
    assert table.next_deadline_s() == 5.0 + TIMEOUT_S.most
