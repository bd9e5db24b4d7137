"""Whoever comes, asks, gives back or leaves, in any order: one job computes at a time, and nobody is forgotten."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from undertow.crossover import messages
from undertow.crossover.arbiter_state import ArbiterState, Outgoing
from undertow.crossover.messages import DeviceTime, FromArbiter, Grant, NowAlone, NowShared, Recall, ToArbiter
from undertow.crossover.turn_state import TurnMode, TurnState
from undertow.crossover.turns import Instruction, Instructions, JobPosition, JobTerms, Overdue, Turns

JOBS = [JobTerms(job="a"), JobTerms(job="b", weight=3.0), JobTerms(job="c", is_urgent=True), JobTerms(job="d")]
WORKERS = 6
LEASE_S = 5.0
DEVICE = "gpu0"

workers = st.integers(0, WORKERS - 1)
seconds = st.sampled_from([0.0, 0.01, 0.5, 2.0, LEASE_S])
places = st.none() | st.builds(JobPosition, st.floats(0, 20), st.floats(0, 2))


def job_of(worker: int) -> JobTerms:
    """Two jobs have two workers each."""
    return JOBS[worker % len(JOBS)]


class Watched:
    """The turns of one device beside a record of what was told to whom; every call must keep the rules."""

    def __init__(self) -> None:
        self.turns = Turns(LEASE_S)
        self.now = 0.0
        self.here: set[int] = set()
        self.may_compute: set[int] = set()  # were told so, and have not given back or been called overdue
        self.is_told_alone: set[int] = set()
        self.waits: set[int] = set()

    def hear(self, instructions: Instructions) -> None:
        for member, told in instructions:
            self._hear(member, told)
        self._check()

    def _hear(self, member: int, told: Instruction) -> None:
        assert member in self.here
        match told:
            case Grant():
                assert member in self.waits or member in self.is_told_alone
                self.may_compute |= {member} - self.is_told_alone
                self.waits.discard(member)
            case Recall():
                assert member in self.may_compute
            case NowShared():
                assert member in self.is_told_alone
                self.is_told_alone.discard(member)
                self.may_compute.add(member)
            case NowAlone():
                self.is_told_alone.add(member)
                self.waits.discard(member)
                self.may_compute.discard(member)
            case Overdue(held_s=held_s):
                assert held_s >= LEASE_S
                self.may_compute.remove(member)
            case DeviceTime(virtual_s=virtual_s, cost_s=cost_s):
                assert virtual_s >= 0
                assert cost_s >= 0

    def _check(self) -> None:
        turns, turn = self.turns, self.turns.turn
        computing = set() if turn is None else turn.computing
        assert computing == self.may_compute
        assert len({job_of(member).job for member in computing}) <= 1
        assert turn is None or (computing and computing <= turn.account.members)
        waiting = {member for account in turns.accounts.values() for member in account.waiting}
        assert waiting == self.waits
        assert not waiting & computing
        assert turn is not None or not waiting  # whenever nobody has the turn nobody waits for it
        assert {member for account in turns.accounts.values() for member in account.members} == self.here
        assert self.is_told_alone == (self.here if turns.is_alone else set())
        for name, account in turns.accounts.items():
            assert name == account.terms.job
            assert account.members
            assert min(account.virtual_s, account.used_s, account.waited_s, account.cost_s) >= 0
            assert account.step_virtual_s <= account.virtual_s
        assert sum(account.used_s for account in turns.accounts.values()) <= self.now + 1e-9
        assert turns.deadline_s is None or turn is not None
        assert turns._unsettled <= self.here


@given(st.data())
def test_the_turns_of_a_device(data: st.DataObject) -> None:
    watched = Watched()
    moves = st.sampled_from(["ask", "ask", "give", "give", "end step", "lift", "leave", "tick"])
    for _ in range(data.draw(st.integers(1, 40))):
        watched.now += data.draw(seconds)
        member = data.draw(workers)
        if member in watched.here:
            act(watched, member, data.draw(moves), data)
        else:
            watched.here.add(member)
            watched.hear(watched.turns.join(member, job_of(member), watched.now))


def act(watched: Watched, member: int, what: str, data: st.DataObject) -> None:
    turns, now = watched.turns, watched.now
    match what:
        case "ask":
            # Who asks has given back; unless it is alone, or has just been.
            if not turns.is_alone and member not in turns._unsettled:
                watched.may_compute.discard(member)
                watched.waits.add(member)
            watched.hear(turns.ask(member, now, data.draw(places)))
        case "give":
            watched.waits.discard(member)
            watched.may_compute.discard(member)
            watched.hear(turns.give(member, now))
        case "end step":
            watched.hear(turns.end_step(member, 1, now))
        case "lift":
            turns.lift(member, data.draw(st.floats(0, 30)))
        case "leave":
            for told in (watched.here, watched.waits, watched.may_compute, watched.is_told_alone):
                told.discard(member)
            watched.hear(turns.leave(member, now))
        case "tick":
            watched.hear(turns.tick(now))


# The same with a worker's turn state at the other end, and messages on their way


class Line:
    """Line between a worker and the arbiter: in order in each direction, and nothing else is promised."""

    def __init__(self, member: int, worker: int) -> None:
        self.member, self.worker = member, worker
        self.turn = TurnState()
        self.to_arbiter: deque[ToArbiter] = deque()
        self.to_worker: deque[FromArbiter] = deque()
        self.is_overdue = False
        self.is_crossed = False  # it gave back what it had before it was alone when it was so no more
        self.has_met = False


class Postman:
    def __init__(self) -> None:
        self.state = ArbiterState(LEASE_S)
        self.now = 0.0
        self.lines: dict[int, Line] = {}  # by worker
        self._members: dict[int, Line] = {}

    def join(self, worker: int) -> None:
        line = Line(len(self._members) + 1, worker)
        self.lines[worker] = self._members[line.member] = line
        terms = job_of(worker)
        line.to_arbiter.append(
            messages.Hello(
                version=messages.VERSION,
                job=terms.job,
                name=terms.job,
                rank=worker // len(JOBS),
                world_size=2,
                pid=worker,
                device=DEVICE,
                weight=terms.weight,
                is_urgent=terms.is_urgent,
            )
        )

    def leave(self, line: Line) -> None:
        """Dead: what was on its way is lost."""
        del self.lines[line.worker]
        line.to_arbiter.clear()
        self._post(self.state.remove(line.member, self.now))

    def to_arbiter(self, line: Line) -> None:
        if not line.to_arbiter:
            return
        message = line.to_arbiter.popleft()
        if isinstance(message, messages.Give):
            line.is_overdue = False
            # It may be one from before it was alone.
            line.is_crossed |= any(isinstance(one, messages.NowShared) for one in line.to_worker)
        self._post(self.state.handle(line.member, message, self.now))

    def to_worker(self, line: Line) -> None:
        if not line.to_worker:
            return
        message = line.to_worker.popleft()
        line.has_met |= isinstance(message, messages.Welcome)
        line.to_arbiter.extend(line.turn.handle(message, self.now))

    def tick(self) -> None:
        device = self.state.devices.get(DEVICE)
        computing = set() if device is None or device.turn is None else set(device.turn.computing)
        outgoing = self.state.tick(self.now)
        notices = [message.text for _, message in outgoing if isinstance(message, messages.Notice)]
        if any("the turn passes to another job" in text for text in notices):
            for member in computing:
                self._members[member].is_overdue = True
        self._post(outgoing)

    def _post(self, outgoing: Outgoing) -> None:
        for member, message in outgoing:
            self._members[member].to_worker.append(message)

    def check(self) -> None:
        self._check_one_at_a_time()
        device = self.state.devices.get(DEVICE)
        for line in self.lines.values():
            turn = line.turn
            assert not (turn.is_waiting and turn.is_computing)
            assert turn.is_computing or not turn.is_granted
            assert turn.is_granted or not turn.is_recalled
            if device is None or not line.has_met or line.to_arbiter or line.to_worker:
                continue
            assert turn.mode is (TurnMode.ALONE if device.is_alone else TurnMode.SHARED)
            if line.is_crossed and turn.is_computing:
                continue
            line.is_crossed = False
            assert turn.is_waiting is (line.member in device.accounts[job_of(line.worker).job].waiting)
            has_turn = device.turn is not None and line.member in device.turn.computing
            assert turn.is_granted is has_turn or line.is_overdue

    def _check_one_at_a_time(self) -> None:
        computing = [one for one in self.lines.values() if one.turn.is_computing]
        rightly = {job_of(one.worker).job for one in computing if not one.is_overdue and not one.is_crossed}
        assert len(rightly) <= 1


@given(st.data())
def test_workers_and_their_arbiter_with_outgoing_on_their_way(data: st.DataObject) -> None:
    postman = Postman()
    moves = ["to arbiter"] * 3 + ["to worker"] * 3 + ["take", "give", "end step"] * 2 + ["leave", "tick"]
    for _ in range(data.draw(st.integers(1, 60))):
        postman.now += data.draw(seconds)
        worker = data.draw(workers)
        line = postman.lines.get(worker)
        if line is None:
            postman.join(worker)
            continue
        move(postman, line, data.draw(st.sampled_from(moves)))
        postman.check()
    finish(postman)


def move(postman: Postman, line: Line, what: str) -> None:
    turn, now = line.turn, postman.now
    match what:
        case "to arbiter":
            postman.to_arbiter(line)
        case "to worker":
            postman.to_worker(line)
        case "take" if line.has_met:
            line.to_arbiter.extend(turn.take(now))
        case "give" if turn.is_computing:
            line.to_arbiter.extend(turn.give(now))
        case "end step" if turn.is_computing:
            line.to_arbiter.extend(turn.end_step(now))
        case "leave":
            postman.leave(line)
        case "tick":
            postman.tick()


def finish(postman: Postman) -> None:
    """If all outgoing arrive, and whoever computes gives back, everybody has had its turn."""
    for _ in range(20 * WORKERS):
        for line in list(postman.lines.values()):
            while line.to_arbiter or line.to_worker:
                postman.to_arbiter(line)
                postman.to_worker(line)
        postman.check()
        for line in postman.lines.values():
            if line.turn.is_computing:
                line.to_arbiter.extend(line.turn.give(postman.now))
    assert not any(line.turn.is_waiting for line in postman.lines.values())
