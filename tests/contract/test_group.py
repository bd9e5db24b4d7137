"""The contracts of `engine.interface`, checked for every implementation, including the fakes."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import pytest

from tests.support.fake_group import FakeGroup
from tests.support.group_teams import (
    SLICE_BYTES,
    ConnectedTeam,
    FakeTeam,
    Member,
    SimulatedTeam,
    Team,
    Waits,
    make_echo_team,
)
from tests.support.slow_group import SlowGroup
from tests.support.timed_group import Clock, TimedGroup
from undertow.engine.client import group as group_module
from undertow.engine.client.calls import Answer, NamedCall
from undertow.engine.client.group import ConnectedGroup
from undertow.engine.client.waiting import Ticket
from undertow.engine.coordinator.messages import DeviceTime, Lift
from undertow.engine.coordinator.terms import Route, Terms
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import EVERYONE, Array, Op
from undertow.engine.core.slicing import Slice, TensorSpec
from undertow.engine.interface import Group, Rounds
from undertow.errors import ConfigError, MismatchError, PeerLost, UndertowError
from undertow.sizing import Sizes

SIZES = Sizes(fixed=SLICE_BYTES)
TEAMS: dict[str, Callable[[], Team]] = {
    "tcp": lambda: ConnectedTeam(3, over_tcp=True),
    "unix": lambda: ConnectedTeam(2, over_tcp=False),
    "alone": lambda: ConnectedTeam(1, over_tcp=True),
    "echo": make_echo_team,
    "fake": lambda: FakeTeam(FakeGroup([2, 6], sizes=SIZES), [1, 2, 6]),
    "slow": lambda: FakeTeam(SlowGroup(SLICE_BYTES), [1, 3]),
    "timed": lambda: FakeTeam(TimedGroup(Clock(), sizes=SIZES), [1, 1]),
    "simulator": lambda: SimulatedTeam(3),
}
GROUPS = [name for name in TEAMS if name != "simulator"]
REAL = ["tcp", "unix", "alone"]
SEVERAL = ["tcp", "unix"]


@pytest.fixture
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    made = TEAMS[request.param]()
    yield made
    made.close()


of_rounds = pytest.mark.parametrize("team", TEAMS, indirect=True)
of_groups = pytest.mark.parametrize("team", GROUPS, indirect=True)
# The fault driver ends a run at the first error, and its workers have their own ways to learn and to be late.
of_groups_that_may_fail = pytest.mark.parametrize("team", [*REAL, "fake", "slow", "timed"], indirect=True)
of_real_groups = pytest.mark.parametrize("team", REAL, indirect=True)
of_several_ranks = pytest.mark.parametrize("team", SEVERAL, indirect=True)


def tensor(name: str = "w", elements: int = 600, dtype: DType = DType.FLOAT32) -> TensorSpec:
    return TensorSpec(name, (elements,), dtype, elements)


TENSORS = [tensor("a", 600), tensor("b", 3), tensor("c", 5), tensor("d", 1100)]


def offer(
    slices: Sequence[Slice], ticket: Ticket, weight: float, *, present: int = 1
) -> tuple[list[Contribution], list[Array]]:
    """Return a contribution to each slice, 1, 2, 3, ... times the weight, and where the results will be."""
    sources = [np.arange(1.0, item.spec.elements + 1).astype(item.spec.dtype.numpy) for item in slices]
    targets = [np.full_like(source, 99) for source in sources]
    items = [
        Contribution(item.spec.key, (source * weight).astype(source.dtype), target, present, ticket.answer)
        for item, source, target in zip(slices, sources, targets, strict=True)
    ]
    return items, targets


def connected(team: Team, rank: int) -> ConnectedGroup:
    assert isinstance(team, ConnectedTeam)
    return team.groups[rank]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, "it does not happen"
        time.sleep(0.001)


def fails(call: Callable[[], object], kind: type[Exception] = UndertowError) -> Exception:
    with pytest.raises(kind) as caught:
        call()
    return caught.value


# Rounds


@of_rounds
def test_every_implementation_has_the_methods_of_its_protocol(team: Team) -> None:
    """Types are checked where members are made; this is for attributes that only `Any` hides."""

    def body(member: Member) -> Waits[None]:
        protocol = Group if member.is_group else Rounds
        for name in dir(protocol):
            # Frontends that need what a fake does not have are not tested with it.
            if not name.startswith("_") and name not in ("calls", "uneven", "turns"):
                assert hasattr(member.rounds, name), name
        yield Ticket(0)

    team.run(body)


@of_rounds
def test_on_result_is_called_once_for_each_contribution_and_with_it(team: Team) -> None:
    def body(member: Member) -> Waits[None]:
        slices = member.open(TENSORS, Op.SUM)
        answered: list[int] = []
        ticket = Ticket(len(slices), lambda: answered.append(-1))
        items, _ = offer(slices, ticket, 1)
        assert len(items) > 2
        member.rounds.contribute(items)
        yield ticket
        assert answered == [-1]  # a ticket refuses one answer too many

    team.run(body)


@of_rounds
def test_contributions_to_one_key_are_answered_in_their_order(team: Team) -> None:
    def body(member: Member) -> Waits[None]:
        slices = member.open(TENSORS, Op.MEAN)
        answered: dict[int, list[int]] = {item.spec.key: [] for item in slices}
        tickets = [Ticket(len(slices)) for _ in range(4)]

        def note(number: int) -> Callable[[Contribution], None]:
            def on_result(contribution: Contribution) -> None:
                answered[contribution.key].append(number)
                tickets[number].answer(contribution)

            return on_result

        for number, ticket in enumerate(tickets):
            items, _ = offer(slices, ticket, 1 + number)
            for item in items:
                item.on_result = note(number)
            # Each rank in an order of its own, and with priorities of its own.
            for item in items[:: -1 if (number + member.rank) % 2 else 1]:
                item.priority = (item.key * 7 + number * 3 + member.rank) % 5
                member.rounds.contribute([item])
        yield from reversed(tickets)
        assert list(answered.values()) == [[0, 1, 2, 3]] * len(slices)

    team.run(body)


@of_rounds
def test_credit_may_change_while_rounds_are_under_way(team: Team) -> None:
    def body(member: Member) -> Waits[None]:
        slices = member.open(TENSORS, Op.SUM)
        tickets = [Ticket(len(slices)) for _ in range(3)]
        for number, ticket in enumerate(tickets):
            member.rounds.contribute(offer(slices, ticket, 1)[0])
            member.rounds.resize(1024 << (4 * number))
        yield from tickets

    team.run(body)


@of_groups_that_may_fail
def test_reserved_keys_can_be_learned_without_a_further_agreement(team: Team) -> None:
    """As when a plan changes: all ranks contribute after all have learned the slices."""

    def body(member: Member) -> Waits[None]:
        slices = member.group.register("table", TENSORS, op=Op.SUM, keys=100)
        first = slices[-1].spec.key + 1
        others = [
            Slice(dataclasses.replace(item.spec, key=first + number), item.ranges) for number, item in enumerate(slices)
        ]
        member.group.learn(others, label="another cut", tensors=TENSORS)
        member.group.barrier()
        for known in (others, slices):
            ticket = Ticket(len(known))
            items, targets = offer(known, ticket, team.weights[member.rank])
            member.group.contribute(items)
            yield ticket
            assert (targets[0] == sum(team.weights) * np.arange(1, known[0].spec.elements + 1)).all()

    team.run(body)


# Results


@of_groups
@pytest.mark.parametrize("op", [Op.SUM, Op.MEAN, Op.COPY])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
def test_results_are_made_of_what_all_ranks_contributed(team: Team, op: Op, dtype: DType) -> None:
    factor = {Op.SUM: sum(team.weights), Op.MEAN: sum(team.weights) / len(team.weights), Op.COPY: 1.0}[op]

    def body(member: Member) -> Waits[None]:
        slices = member.open([tensor("a", 600, dtype), tensor("b", 3, dtype)], op)
        for _ in range(3):
            ticket = Ticket(len(slices))
            items, targets = offer(slices, ticket, team.weights[member.rank])
            sources = [(item.source, item.source.copy()) for item in items if item.source is not None]
            member.rounds.contribute(items)
            yield ticket
            for item, target in zip(slices, targets, strict=True):
                assert (target == factor * np.arange(1, item.spec.elements + 1)).all()
            assert all(np.array_equal(source, before) for source, before in sources)
            assert not ticket.absent
            assert {item.present for item in items} == {1}

    team.run(body)


@of_groups
def test_a_target_may_be_the_source(team: Team) -> None:
    def body(member: Member) -> Waits[None]:
        slices = member.open([tensor("a", 600)], Op.SUM)
        ticket = Ticket(len(slices))
        items, _ = offer(slices, ticket, team.weights[member.rank])
        for item in items:
            item.target = item.source
        member.rounds.contribute(items)
        yield ticket
        for item, part in zip(items, slices, strict=True):
            assert item.target is not None
            assert (item.target == sum(team.weights) * np.arange(1, part.spec.elements + 1)).all()

    team.run(body)


@of_groups
def test_a_round_to_which_no_rank_brings_a_value_has_none(team: Team) -> None:
    def body(member: Member) -> Waits[None]:
        slices = member.open([tensor("a", 10)], Op.MEAN)
        ticket = Ticket(len(slices))
        items = [Contribution(item.spec.key, None, None, 0, ticket.answer) for item in slices]
        member.rounds.contribute(items)
        yield ticket
        assert [item.present for item in items] == [0] * len(items)

    team.run(body)


@of_groups
def test_gathered_pieces_come_in_rank_order_and_can_be_given_back(team: Team) -> None:
    def body(member: Member) -> Waits[list[list[bytes]]]:
        slices = member.open([tensor("a", 0, DType.BYTES), tensor("b", 0, DType.BYTES)], Op.GATHER)
        assert [item.spec.owner for item in slices] == [EVERYONE, EVERYONE]
        found = []
        for lap in range(3):
            ticket = Ticket(len(slices))
            items = [
                Contribution(item.spec.key, np.full(3 + member.rank, lap, np.uint8), None, 7, ticket.answer)
                for item in slices
            ]
            member.rounds.contribute(items)
            yield ticket
            for item in items:
                assert len(item.gathered) == member.size
                assert item.gathered[member.rank].array is item.source
                assert all(piece.present == 7 for piece in item.gathered)
                found.append([piece.array.tobytes() for piece in item.gathered])
                others = [piece for rank, piece in enumerate(item.gathered) if rank != member.rank]
                member.rounds.release(others)
        return found

    results = team.run(body)
    assert all(result == results[0] for result in results)
    if len(results) > 1:
        expected = [[bytes([lap]) * (3 + rank) for rank in range(len(results))] for lap in range(3) for _ in "ab"]
        assert results[0] == expected


@of_real_groups
def test_a_contribution_is_sent_when_its_bytes_are_in_place(team: Team) -> None:
    def body(member: Member) -> Waits[None]:
        slices = member.open([tensor("a", 10)], Op.SUM)
        ticket, source = Ticket(1), np.zeros(10, np.float32)
        asked = itertools.count()

        def is_ready() -> bool:
            if next(asked) < 5:
                return False
            source[:] = 1 + member.rank
            return True

        target = np.empty(10, np.float32)
        member.rounds.contribute([Contribution(slices[0].spec.key, source, target, 1, ticket.answer)], is_ready)
        yield ticket
        assert next(asked) == 6
        assert (target == sum(team.weights)).all()
        assert member.group.open_work.is_done

    team.run(body)


# Tables


@of_groups
def test_the_slices_of_a_table_cover_each_element_once_and_are_the_same_on_all_ranks(team: Team) -> None:
    def body(member: Member) -> list[Slice]:
        return member.group.register("table", TENSORS, op=Op.MEAN)

    results = team.run(body)
    assert all(result == results[0] for result in results)
    marks = [np.zeros(spec.elements, int) for spec in TENSORS]
    for item in results[0]:
        assert item.spec.elements == sum(part.elements for part in item.ranges)
        assert 0 <= item.spec.owner < len(team.weights)
        assert (item.spec.op, item.spec.dtype, item.spec.keep) == (Op.MEAN, DType.FLOAT32, False)
        for part in item.ranges:
            marks[part.tensor][part.offset :][: part.elements] += 1
    assert all((mark == 1).all() for mark in marks)


@of_groups
def test_keys_are_consecutive_and_reserved_ones_stay_free(team: Team) -> None:
    def body(member: Member) -> list[list[int]]:
        tables = [member.group.register(f"table {keys}", TENSORS, op=Op.SUM, keys=keys) for keys in (0, 1000, 3)]
        return [[item.spec.key for item in slices] for slices in tables]

    for first, second, third in team.run(body):
        for keys in (first, second, third):
            assert keys == list(range(keys[0], keys[0] + len(keys)))
        assert second[0] > first[-1]
        assert third[0] >= second[0] + 1000


@of_groups
def test_a_mean_of_integers_is_refused_before_any_message_is_sent(team: Team) -> None:
    def body(member: Member) -> None:
        if member.rank == 0:
            error = fails(
                lambda: member.group.register("counts", [tensor("n", 3, DType.INT64)], op=Op.MEAN), ConfigError
            )
            assert "no exact mean of integers" in str(error)
        assert member.group.error is None
        member.group.barrier()

    team.run(body)


@of_groups
def test_a_table_may_be_discarded(team: Team) -> None:
    def body(member: Member) -> Waits[None]:
        slices = member.open(TENSORS, Op.SUM)
        ticket = Ticket(len(slices))
        member.rounds.contribute(offer(slices, ticket, 1)[0])
        yield ticket
        keys = range(slices[0].spec.key, slices[-1].spec.key + 1)
        member.group.discard(keys)
        others = member.open(TENSORS, Op.SUM)
        assert not {item.spec.key for item in others} & set(keys)
        ticket = Ticket(len(others))
        member.rounds.contribute(offer(others, ticket, 1)[0])
        yield ticket
        if isinstance(team, ConnectedTeam):
            wait_until(lambda: not member.group.uneven.knows(slices))  # until all ranks have discarded it
            assert member.group.uneven.knows(others)
            member.group.barrier()

    team.run(body)


# Waiting, and errors


@of_groups_that_may_fail
def test_a_group_that_has_failed_raises_its_error_wherever_it_would_wait(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "SUSPICION_S", 0.01)

    def body(member: Member) -> None:
        group = member.group
        slices = group.register("table", TENSORS, op=Op.SUM)
        group.check()
        answers: list[Contribution] = []
        ticket = Ticket(1)
        if member.rank == 0:
            group.suspect(PeerLost("so it seems", rank=member.size))
            wait_until(lambda: group.error is not None)
            assert isinstance(group.error, PeerLost)
            group.contribute([Contribution(slices[0].spec.key, None, None, 0, answers.append)])
            for call in (
                group.check,
                lambda: group.wait_for(ticket),
                group.barrier,
                lambda: group.agree("copy", b"x"),
                lambda: group.register("table", TENSORS, op=Op.SUM),
            ):
                error = fails(call, PeerLost)
                assert isinstance(error, PeerLost)
                assert (error.rank, error.reason) == (member.size, "so it seems")
                assert error is not group.error
            assert answers == []

    team.run(body)


@of_groups
def test_a_wait_for_results_that_have_arrived_returns_at_once(team: Team) -> None:
    def body(member: Member) -> None:
        member.group.wait_for(Ticket(0), "nothing")
        assert member.group.error is None

    team.run(body)


# All ranks together


@of_groups
def test_ranks_agree_on_what_rank_0_brings_and_on_digests(team: Team) -> None:
    def body(member: Member) -> bytes:
        group = member.group
        group.barrier()
        assert group.agree("digest", msgspec.msgpack.encode([("w", b"same")])) == b""
        return group.agree("copy", b"of rank %d" % member.rank)

    assert set(team.run(body)) == {b"of rank 0"}


@of_groups
def test_what_a_group_is_does_not_change(team: Team) -> None:
    def body(member: Member) -> None:
        group = member.group
        assert (group.rank, group.size) == (member.rank, member.size) == (group.shape.rank, group.shape.workers)
        assert group.shape is group.shape
        assert len(group.shape.hosts) == member.size
        assert group.rate is group.rate

    team.run(body)


# Work beside the engine


@of_groups_that_may_fail
def test_work_beside_the_engine_is_done_in_order(team: Team) -> None:
    def body(member: Member) -> None:
        done: list[int] = []
        finished = threading.Event()
        member.group.start_helper()
        for number in range(20):
            member.group.aside(lambda number=number: done.append(number))  # type: ignore[misc]
        member.group.aside(finished.set)
        assert finished.wait(30)
        assert done == list(range(20))

    team.run(body)


@of_groups_that_may_fail
def test_an_error_of_work_beside_the_engine_fails_the_group(team: Team) -> None:
    def body(member: Member) -> None:
        def fail() -> None:
            raise ZeroDivisionError("of a planner")

        if member.rank == 0:
            member.group.aside(fail)
            wait_until(lambda: member.group.error is not None)
            assert "ZeroDivisionError: of a planner" in str(fails(member.group.check))

    team.run(body)


# Several ranks


@of_several_ranks
def test_different_tensors_fail_all_ranks_and_the_group_does_not_recover(team: Team) -> None:
    odd = len(team.weights) - 1

    def body(member: Member) -> None:
        second = tensor("c" if member.rank == odd else "b", 5)
        for _ in range(2):
            error = fails(lambda: member.group.register("Net", [tensor("a"), second], op=Op.SUM), MismatchError)
            assert isinstance(error, MismatchError)
            assert (error.matter, error.tensor, error.ranks) == ("Net", "b", (0, odd))
        assert member.group.error is None

    team.run(body)


@of_several_ranks
def test_different_calls_fail_all_ranks(team: Team) -> None:
    def body(member: Member) -> None:
        call = member.group.barrier if member.rank else (lambda: member.group.agree("copy"))
        error = fails(call, MismatchError)
        assert isinstance(error, MismatchError)
        assert 0 in error.ranks
        assert "All ranks must run the same calls in the same order" in str(error)

    team.run(body)


@of_several_ranks
def test_no_rank_passes_a_barrier_before_all_are_there(team: Team) -> None:
    arrived: list[int] = []

    def body(member: Member) -> None:
        for lap in range(1, 20):
            arrived.append(member.rank)
            member.group.barrier()
            assert len(arrived) >= lap * member.size

    team.run(body)


@of_several_ranks
def test_a_slice_has_the_tensors_that_any_rank_holds(team: Team) -> None:
    """In a slice of several tensors; a rank without a value counts as zero."""

    def body(member: Member) -> Waits[None]:
        [item] = member.open([tensor("a", 3), tensor("b", 5)], Op.SUM)
        ticket, target = Ticket(1), np.empty(8, np.float32)
        source = np.array([7, 7, 7, 0, 0, 0, 0, 0] if member.rank else [0, 0, 0, 1, 2, 3, 4, 5], np.float32)
        is_empty = member.rank > 1
        contribution = Contribution(
            item.spec.key,
            None if is_empty else source,
            target,
            0 if is_empty else 1 + (member.rank == 0),
            ticket.answer,
        )
        member.group.contribute([contribution])
        yield ticket
        assert contribution.present == 3
        assert target.tolist() == [7, 7, 7, 1, 2, 3, 4, 5]

    team.run(body)


@of_several_ranks
@pytest.mark.parametrize("divide_by_active", [True, False])
def test_rounds_continue_without_a_rank_that_ran_out_of_input(team: Team, divide_by_active: bool) -> None:
    last = len(team.weights) - 1

    def body(member: Member) -> Waits[None]:
        slices = member.open([tensor("a", 10)], Op.MEAN)
        own_rounds = 3 if member.rank == last else 1  # all but the last rank run out of input after one round
        for lap in range(own_rounds):
            ticket = Ticket(1)
            items, targets = offer(slices, ticket, 1)
            member.group.contribute(items)
            yield ticket
            assert (ticket.absent, items[0].absent) == (lap > 0, lap > 0)
            divisor = 1 if divide_by_active or lap == 0 else member.size
            assert np.allclose(targets[0], np.arange(1, 11) / divisor)
        member.group.uneven.leave(slices, divide_by_active=divide_by_active)
        assert member.group.uneven.settle([slices]) == (last, False)
        ticket = Ticket(1)
        items, targets = offer(slices, ticket, 1)
        member.group.contribute(items)
        yield ticket
        assert not ticket.absent
        assert (targets[0] == np.arange(1, 11)).all()

    team.run(body)


@of_several_ranks
def test_a_rank_that_leaves_because_of_an_error_is_named_by_all_others(team: Team) -> None:
    all_passed = threading.Barrier(len(team.weights))

    def body(member: Member) -> None:
        slices = member.open(TENSORS, Op.SUM)
        ticket = Ticket(len(slices))
        if member.rank != 1:
            member.group.contribute(offer(slices, ticket, 1)[0])
        member.group.barrier()
        all_passed.wait(30)
        if member.rank == 1:
            connected(team, 1).leave("its script failed", 3)
            return
        error = fails(lambda: member.group.wait_for(ticket), PeerLost)
        assert isinstance(error, PeerLost)
        assert (error.rank, error.reason, error.exit_code) == (1, "its script failed", 3)
        assert (error.own_rank, error.step, error.silent_s) == (member.rank, 1, None)
        assert error.host == member.group.shape.hosts[1]
        assert member.group.error is not None
        fails(member.group.barrier, PeerLost)

    team.run(body)


def make_call(member: Member, name: str, value: float, *, elements: int = 300) -> tuple[NamedCall, list[Array]]:
    """Return a call that sums `elements` numbers of this value, and the results."""
    targets: list[Array] = []

    def contribute(slices: Sequence[Slice], answer: Answer) -> list[Contribution]:
        sources = [np.full(item.spec.elements, value, np.float32) for item in slices]
        targets.extend(np.empty_like(source) for source in sources)
        parts = zip(slices, sources, targets, strict=True)
        return [Contribution(item.spec.key, source, target, 1, answer) for item, source, target in parts]

    terms = Terms("allreduce", Route.SLICES, Op.SUM, [tensor("x", elements)], allows_absent=True)
    return NamedCall(name, terms, contribute), targets


@of_several_ranks
def test_named_calls_meet_in_any_order(team: Team) -> None:
    def body(member: Member) -> None:
        names = [f"call {number}" for number in range(6)]
        order = names[member.rank :] + names[: member.rank]
        made = {name: make_call(member, name, 10 * names.index(name) + member.rank) for name in order}
        for name in order:
            member.group.calls.begin(made[name][0])
        for number, name in enumerate(names):
            call, targets = made[name]
            member.group.calls.wait_for(call)
            total = 10 * number * member.size + sum(range(member.size))
            assert all((target == total).all() for target in targets)
            assert sum(target.size for target in targets) == 300

    team.run(body)


@of_several_ranks
def test_a_mismatch_in_a_named_call_fails_all_ranks_and_later_calls_work(team: Team) -> None:
    def body(member: Member) -> None:
        group = member.group
        call, _ = make_call(member, "x", 1, elements=300 if member.rank else 400)
        group.calls.begin(call)
        error = fails(lambda: group.calls.wait_for(call), MismatchError)
        assert isinstance(error, MismatchError)
        assert (error.matter, error.tensor, error.ranks) == ("x", "x", (0, 1))
        call, targets = make_call(member, "x", 1)
        group.calls.begin(call)
        group.calls.wait_for(call)
        assert (targets[0] == member.size).all()

    team.run(body)


@of_several_ranks
def test_named_calls_continue_without_ranks_that_ran_out_until_none_has_input(team: Team) -> None:
    last = len(team.weights) - 1

    def body(member: Member) -> None:
        group = member.group
        if member.rank == last:
            call, targets = make_call(member, "alone", 4)
            group.calls.begin(call)
            group.calls.wait_for(call)
            assert (targets[0] == 4).all()
        assert group.calls.wait_until_out(group.calls.run_out()) == last

    team.run(body)


@of_several_ranks
def test_messages_about_turns_go_from_the_first_rank_to_all_and_from_all_to_it(team: Team) -> None:
    def body(member: Member) -> list[tuple[int, DeviceTime | Lift]]:
        heard: list[tuple[int, DeviceTime | Lift]] = []
        group = member.group
        group.turns.on_message(lambda rank, message: heard.append((rank, message)))
        group.barrier()
        group.turns.send(DeviceTime(3, 1.5, 0.5) if member.rank == 0 else Lift(2.5))
        wait_until(lambda: len(heard) == (member.size - 1 if member.rank == 0 else 1))
        group.barrier()
        return sorted(heard, key=lambda each: each[0])

    first, *others = team.run(body)
    assert first == [(rank, Lift(2.5)) for rank in range(1, len(team.weights))]
    assert others == [[(0, DeviceTime(3, 1.5, 0.5))]] * len(others)


@of_several_ranks
def test_a_group_is_not_left_while_other_ranks_need_work_of_this_one(team: Team) -> None:
    def body(member: Member) -> Waits[None]:
        group = member.group
        slices = group.register("table", TENSORS, op=Op.SUM)
        ticket = Ticket(len(slices))
        items, targets = offer(slices, ticket, 1)
        if member.rank:
            group.contribute(items)
            yield ticket
            assert (targets[0] == member.size * np.arange(1, slices[0].spec.elements + 1)).all()
            return

        def work() -> None:
            time.sleep(0.1)
            group.contribute(items)

        group.aside(work)
        assert not group.open_work.is_done
        connected(team, 0).close()
        assert ticket.is_done

    team.run(body)
