"""An engine or a driver that breaks a claim, for each claim of the driver: the driver finds it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.breakages import Break, Patch, find_broken, wrap
from undertow.engine.client import control as control_module
from undertow.engine.client import group as group_module
from undertow.engine.client.control import GroupControl
from undertow.engine.client.discarding import Discarding
from undertow.engine.client.engine_queue import UnevenRounds
from undertow.engine.client.exchange import Exchange
from undertow.engine.client.helper import OpenWork
from undertow.engine.client.receiver import GroupReceiver
from undertow.engine.client.waiting import Ticket
from undertow.engine.client.worker_side import WorkerSide
from undertow.engine.coordinator import agreement
from undertow.engine.coordinator.agreement import Agreements
from undertow.engine.core import frames, rounds
from undertow.engine.core.frames import Kind, Unexpected
from undertow.engine.core.membership import Loss, Membership
from undertow.engine.core.outbox import Outbox, QueuedFrame
from undertow.engine.core.rounds import Round
from undertow.engine.server.gathering import Gathering
from undertow.engine.server.shard import Shard
from undertow.errors import MismatchError, PeerLost
from undertow.tools.faults import cluster as cluster_module
from undertow.tools.faults.invariants import Invariants
from undertow.tools.faults.sums import Contributor
from undertow.torch.gates.gates import Gate

# Sums


def add_in_order_of_arrival(patch: Patch) -> None:
    patch.setattr(rounds, "sorted", list, raising=False)


def tell_nobody_who_was_absent(patch: Patch) -> None:
    wrap(
        patch,
        WorkerSide,
        "_accept",
        lambda real: lambda self, item, present, absent: real(self, item, present, absent=0),
    )


def hand_pieces_out_in_reverse(patch: Patch) -> None:
    def make(real: Any) -> Any:
        def contribute(self: Gathering, *arguments: Any) -> Any:
            pieces = real(self, *arguments)
            return pieces and pieces[::-1]

        return contribute

    wrap(patch, Gathering, "contribute", make)


def forget_that_pieces_are_complete(patch: Patch) -> None:
    wrap(patch, Gathering, "contribute", lambda real: lambda self, *arguments: real(self, *arguments) and None)
    patch.setattr(Contributor, "wait", lambda self: iter(()))


def publish_zeros(patch: Patch) -> None:
    wrap(patch, Shard, "publish", lambda real: lambda self, *a, **o: [_emptied(one) for one in real(self, *a, **o)])


def _emptied(answer: Any) -> Any:
    import dataclasses

    return dataclasses.replace(answer, array=None if answer.array is None else answer.array * 0)


# Answers


def answer_twice(patch: Patch) -> None:
    def make(real: Any) -> Any:
        def accept(self: WorkerSide, item: Any, present: int, *, absent: bool) -> None:
            real(self, item, present, absent=absent)
            item.on_result(item)

        return accept

    wrap(patch, WorkerSide, "_accept", make)


def send_results_twice(patch: Patch) -> None:
    def make(real: Any) -> Any:
        def put(self: Outbox, queued: list[QueuedFrame], *rest: Any) -> None:
            for _ in range(1 + any(frame.header.kind is Kind.RESULT for frame in queued)):
                real(self, queued, *rest)

        return put

    wrap(patch, Outbox, "put", make)


def never_answer(patch: Patch) -> None:
    wrap(patch, Shard, "_finish_if_complete", lambda real: lambda self, key: real(self, key)[:-1])


def count_no_answers(patch: Patch) -> None:
    def count(self: Contributor, look: Any, answers: Any) -> Any:
        def on_result(item: Any) -> None:
            answers.left -= 1
            answers.ticket.answer(item)

        return on_result

    patch.setattr(Contributor, "_count", count)


def drain_never(patch: Patch) -> None:
    patch.setattr(Exchange, "is_drained", property(lambda self: False))


def wait_for_more(patch: Patch) -> None:
    patch.setattr(Exchange, "pending", lambda self: ("a key", 1))


# Credit


def return_credit_twice(patch: Patch) -> None:
    def acknowledge(self: Outbox, peer: int, received_bytes: int) -> bool:
        self.in_flight_bytes -= received_bytes
        return True

    patch.setattr(Outbox, "acknowledge", acknowledge)


def ignore_the_credit(patch: Patch) -> None:
    wrap(
        patch, Outbox, "__init__", lambda real: lambda self, credit_bytes, *rest: real(self, 100 * credit_bytes, *rest)
    )


def never_return_credit(patch: Patch) -> None:
    patch.setattr(Outbox, "acknowledge", lambda self, peer, received_bytes: True)


# Gates


def open_tickets_early(patch: Patch) -> None:
    patch.setattr(Ticket, "is_done", property(lambda self: self._left <= 1))


def close_no_gate(patch: Patch) -> None:
    patch.setattr(Gate, "close", lambda self: None)


def land_nothing(patch: Patch) -> None:
    wrap(patch, Gate, "land", lambda real: lambda self: real(self) if self.update is None else self._forget())
    patch.setattr(Gate, "_forget", _restore_value, raising=False)


def _restore_value(gate: Any) -> None:
    if gate._value is not None:
        gate.parameter.data, gate._value = gate._value * 2, None


def answer_no_ticket(patch: Patch) -> None:
    patch.setattr(Ticket, "answer", lambda self, contribution: None)


# Losses


def mourn_in_silence(patch: Patch) -> None:
    patch.setattr(GroupControl, "_report_loss", lambda self, loss: None)


def lose_the_wrong_one(patch: Patch) -> None:
    def lose(self: GroupControl, rank: int, reason: str) -> None:
        wrong = (rank + 1) % self._shape.workers
        self._report_loss(self._membership.lose(Loss(wrong, self._shape.rank, reason)))

    patch.setattr(GroupControl, "lose", lose)


def see_no_slander(patch: Patch) -> None:
    lose_the_wrong_one(patch)
    patch.setattr(Invariants, "_check_error", lambda self, worker: None)


def lose_who_is_only_slow(patch: Patch) -> None:
    _stretch_silence(patch, 0.3)


def lose_far_too_late(patch: Patch) -> None:
    _stretch_silence(patch, 3.0)


def see_no_impatience(patch: Patch) -> None:
    _stretch_silence(patch, 0.01)
    patch.setattr(Invariants, "_check_error", lambda self, worker: None)


def _stretch_silence(patch: Patch, times: float) -> None:
    def make(real: Any) -> Any:
        return lambda self, rank, hosts, *, silence_s, now: real(
            self, rank, hosts, silence_s=times * silence_s, now=now
        )

    wrap(patch, Membership, "__init__", make)


def leave_in_a_hurry(patch: Patch) -> None:
    """Leave within two seconds, even if a slow peer still needs frames."""
    _leave_within(patch, 2.0)


def _leave_within(patch: Patch, most_s: float) -> None:
    def make(real: Any) -> Any:
        return lambda self, condition, timeout_s, *rest: real(self, condition, min(timeout_s, most_s), *rest)

    wrap(patch, GroupControl, "_poll", make)


def leave_after_the_silence_timeout(patch: Patch) -> None:
    """Leave within the silence timeout, however late a living peer may be."""
    _leave_within(patch, cluster_module.SILENCE_S)


def leave_before_the_helper_has_worked(patch: Patch) -> None:
    patch.setattr(OpenWork, "is_done", property(lambda self: True))


def hear_of_no_ended_script(patch: Patch) -> None:
    patch.setattr(GroupControl, "_lacks", lambda self, rank, keys: False)


def say_not_where(patch: Patch) -> None:
    patch.setattr(control_module, "PeerLost", lambda reason, *, own_rank, **facts: PeerLost(reason, **facts))


def accuse_rank_0(patch: Patch) -> None:
    patch.setattr(
        GroupControl, "check_departed", lambda self: self._report_loss(Loss(0, self._shape.rank, "so it seems"))
    )


def see_no_accusation(patch: Patch) -> None:
    accuse_rank_0(patch)
    patch.setattr(Invariants, "_check_error", lambda self, worker: None)


def go_on_without_one(patch: Patch) -> None:
    patch.setattr(Round, "is_complete", lambda self, absent=frozenset(): self._count >= self._workers - 1)
    patch.setattr(Round, "missing", lambda self, absent=frozenset(): [])
    patch.setattr(GroupControl, "check_departed", lambda self: None)
    count_no_answers(patch)


# Nonsense


def drop_what_is_meant(patch: Patch) -> None:
    def make(real: Any) -> Any:
        def expects(self: Shard, rank: int, key: int, step: int) -> Any:
            if step == 2:
                raise Unexpected("I do not like this round")
            return real(self, rank, key, step)

        return expects

    wrap(patch, Shard, "expects", make)


def count_no_drops(patch: Patch) -> None:
    patch.setattr(GroupReceiver, "_drop", lambda self, peer, header, reason: None)


def believe_every_job(patch: Patch) -> None:
    patch.setattr(GroupReceiver, "_check_sender", lambda self, peer, header: None)


def check_no_bodies(patch: Patch) -> None:
    patch.setattr(frames, "check_body", lambda header, body: None)


def hang_up_on_damage_without_a_word(patch: Patch) -> None:
    def make(real: Any) -> Any:
        def lose(self: GroupControl, rank: int, reason: str) -> None:
            if "damaged" in reason:
                self._transport.close()
            real(self, rank, reason)

        return lose

    wrap(patch, GroupControl, "lose", make)


def come_twice_to_an_agreement(patch: Patch) -> None:
    patch.setattr(Agreements, "expects", lambda self, rank, sequence: True)


def fail_in_the_engine(patch: Patch) -> None:
    def make(real: Any) -> Any:
        def handle(self: Exchange, peer: int, header: Any, body: Any) -> None:
            if header.kind is Kind.RESULT and header.step == 2:
                raise KeyError("a defect")
            real(self, peer, header, body)

        return handle

    wrap(patch, Exchange, "handle", make)


def raise_outside_of_the_engine(patch: Patch) -> None:
    def explode(self: UnevenRounds, slices: Any) -> int:
        raise ZeroDivisionError("nobody keeps this one")

    patch.setattr(UnevenRounds, "resume", lambda self, slices, rounds_done: explode(self, slices))


# Agreements


def cut_by_rank(patch: Patch) -> None:
    def make(real: Any) -> Any:
        return lambda tensors, *a, **o: [
            one for one in real(tensors, *a, **o) if one.spec.owner != o["placement"].owners[-1]
        ]

    calls = iter(range(10**6))
    real = group_module.cut
    patch.setattr(group_module, "cut", lambda *a, **o: make(real)(*a, **o) if next(calls) % 2 else real(*a, **o))


def disagree(patch: Patch) -> None:
    def refuse(tables: Any) -> None:
        raise MismatchError("these are not the same")

    patch.setattr(agreement, "compare_tables", refuse)


def see_drift(patch: Patch) -> None:
    patch.setattr(agreement, "compare_digests", lambda payloads: b"weight")


def expect_nobody_after_a_mismatch(patch: Patch) -> None:
    patch.setattr(Agreements, "expects", lambda self, rank, sequence: sequence > self._decided)


def agree_with_everything(patch: Patch) -> None:
    patch.setattr(agreement, "compare_tables", lambda tables: None)


def fail_before_the_verdict(patch: Patch) -> None:
    patch.setattr(
        GroupControl,
        "arrive",
        lambda self, pending, payload: self._report_loss(Loss(0, self._shape.rank, "so it seems")),
    )


# Discarded keys


def discard_with_rounds_under_way(patch: Patch) -> None:
    patch.setattr(Exchange, "is_idle", lambda self, keys: True)


def forget_what_another_rank_uses(patch: Patch) -> None:
    def make(real: Any) -> Any:
        return lambda self, rank, workers, *others: real(self, rank, max(1, workers - 1), *others)

    wrap(patch, Discarding, "__init__", make)


def forget_nothing(patch: Patch) -> None:
    patch.setattr(Exchange, "forget", lambda self, keys: None)


def forget_only_where_it_is_sent_from(patch: Patch) -> None:
    patch.setattr(Shard, "forget", lambda self, keys: None)


# The driver


def have_no_patience(patch: Patch) -> None:
    patch.setattr(cluster_module, "MOST_EVENTS", 20)


@pytest.mark.parametrize(
    ("broken", "scenario", "claim"),
    [
        (add_in_order_of_arrival, "schedule", r"^sum: rank \d key \d+ step \d: got .* expected"),
        (add_in_order_of_arrival, "killed", "^sum: "),
        (tell_nobody_who_was_absent, "join", "absent 0, expected"),
        (hand_pieces_out_in_reverse, "gathering", "^gathered: rank"),
        (forget_that_pieces_are_complete, "gathering", r"\d+ answers of \d+"),
        (publish_zeros, "killed", "^sum: .*: rows"),
        (answer_twice, "schedule", "is answered 2 times"),
        (send_results_twice, "credit", "its RESULT of key .* twice"),
        (never_answer, "schedule", r"^deadlock: .*rank \d waits for its answers \(key \d+ round \d at rank \d"),
        (count_no_answers, "schedule", "answers per contribution at the end"),
        (drain_never, "schedule", "still sends"),
        (wait_for_more, "schedule", "still waits for"),
        (return_credit_twice, "schedule", "^credit: rank . has -"),
        (ignore_the_credit, "schedule", "^credit: rank . has .* of .* allowed"),
        (never_return_credit, "credit", "^deadlock: .* bytes in flight"),
        (open_tickets_early, "schedule", "^a gate is open early: slices of step"),
        (open_tickets_early, "gates", "^a gate is open early: . answers are still missing"),
        (close_no_gate, "gates", "^a gate is open early: that of"),
        (land_nothing, "gates", "^gates: the .* differs"),
        (answer_no_ticket, "gates", "waits at a gate that never opens"),
        (mourn_in_silence, "killed", "^deadlock"),
        (mourn_in_silence, "stopped", "^deadlock"),
        (mourn_in_silence, "early", "^deadlock"),
        (lose_the_wrong_one, "killed", "which has done nothing"),
        (see_no_slander, "killed", "not naming"),
        (see_no_slander, "endless", "does not name"),
        (lose_who_is_only_slow, "slow", "which has done nothing"),
        (lose_far_too_late, "stopped", "names the stopped rank only after"),
        (see_no_impatience, "slow", "ended with PeerLost"),
        (see_no_accusation, "orderly", "ended with PeerLost"),
        (leave_in_a_hurry, "slow-goodbye", "which has done nothing"),
        (leave_before_the_helper_has_worked, "ending", "which has done nothing"),
        (hear_of_no_ended_script, "ending", "^deadlock: .*waits for the goodbyes"),
        (leave_after_the_silence_timeout, "late-leaving", "which has done nothing"),
        (mourn_in_silence, "late-leaving", "^deadlock"),
        (say_not_where, "killed", "does not name its own rank and step"),
        (accuse_rank_0, "early", "left in order and failed"),
        (go_on_without_one, "early", "was done, but no rank can be"),
        (drop_what_is_meant, "schedule", "but no rank sends nonsense"),
        (count_no_drops, "nonsense", r"^nonsense: \d+ frames were sent, 0 dropped"),
        (count_no_drops, "restart", r"^late frames: \d+ came, 0 were dropped"),
        (believe_every_job, "restart", "^sum: |^gathered: "),
        (check_no_bodies, "damaged", "^sum: |^gathered: "),
        (hang_up_on_damage_without_a_word, "damaged", "which has done nothing: .* its connection closed"),
        (come_twice_to_an_agreement, "repeats", "which has done nothing"),
        (lose_the_wrong_one, "nonsense-and-death", "which has done nothing"),
        (fail_in_the_engine, "schedule", "failed by itself: the engine failed: KeyError"),
        (raise_outside_of_the_engine, "join", "something else was raised: ZeroDivisionError"),
        (cut_by_rank, "killed", "cuts other slices"),
        (disagree, "killed", "cannot agree on 'tensors': these are not the same"),
        (see_drift, "killed", "finds drift"),
        (expect_nobody_after_a_mismatch, "disagree", "but no rank sends nonsense"),
        (agree_with_everything, "disagree", "is not told that rank . differs"),
        (fail_before_the_verdict, "disagree", "^only 0 ranks are told"),
        (discard_with_rounds_under_way, "discards", "failed by itself: the engine failed"),
        (forget_what_another_rank_uses, "discards", "failed by itself|no rank sends nonsense"),
        (forget_nothing, "discards", "^deadlock: .*waits for the others to discard"),
        (forget_only_where_it_is_sent_from, "discards", "knows the keys .* at the end"),
        (have_no_patience, "schedule", "there is no end"),
    ],
)
def test_the_driver_finds_it(monkeypatch: Patch, broken: Break, scenario: str, claim: str) -> None:
    broken(monkeypatch)
    outcome = find_broken(scenario, claim)
    told = outcome.explain()
    assert len(outcome.log) > 1
    assert told[-2:] == [f"broken: {outcome.broken}", f"replay: {outcome.replay}"]
