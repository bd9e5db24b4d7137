"""Crossover's policy: which job may compute on one device.

In: workers that join, ask, give back and leave; the time, as an argument.
Out: messages to workers, such as grants and recalls; and the workers that have exceeded the lease.
It uses no sockets and no clock: the arbiter, the simulator and the fault driver run the same code.

A turn belongs to a job, and all its workers on the device compute in it.  A job gives the turn back while it waits for
the network.  Of the jobs that ask for it, the one with the least device time per weight goes first.  That count is the
same on all hosts (see `DeviceTimes`), so all hosts run the jobs in the same order.  A job that should have gone first
but asked a moment too late, or that is far behind its share, takes the turn over between two layers: the holder is
recalled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from undertow.crossover.messages import DeviceTime, Grant, NowAlone, NowShared, Recall

LEASE_S = 30.0
# A step counts as young, and may be interrupted, while less than this fraction of it is computed.  This corrects the
# order if two jobs came to a free device in different orders on two hosts, which would otherwise always compute
# different jobs.
YOUNG = 0.1
# A job is far behind if its count is lower than the holder's by more than this fraction of a step.  Otherwise it can
# wait until the holder waits for the network, which happens once in a step.  It also waits if the holder has begun its
# step and is nearer to the end of it: the job that can communicate first goes first, so that device and network are
# both busy.
FAR = 0.5
# The largest credit that a job gains by not computing, in seconds of device time per weight.
CREDIT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class JobTerms:
    """Terms that a job requests, the same on all its hosts."""

    job: str  # its identity
    weight: float = 1.0
    is_urgent: bool = False


@dataclass(frozen=True)
class JobPosition:
    """Position of a job in the order of all jobs, for one step."""

    virtual_s: float  # device time per weight so far
    cost_s: float  # device time per weight of one step


@dataclass(frozen=True)
class Overdue:
    """Loss of the turn by a worker that has held it for longer than the lease."""

    held_s: float


Instruction = Grant | Recall | NowShared | NowAlone | DeviceTime | Overdue
Instructions = list[tuple[int, Instruction]]  # each with its member


@dataclass(eq=False)
class Account:
    """Account of one job on one device: its members, the device time that it has used, the turns that it has had."""

    terms: JobTerms
    virtual_s: float  # device time per weight, as counted by this arbiter
    position: JobPosition | None = None  # as counted for all hosts, once it is known
    members: set[int] = field(default_factory=set)
    waiting: dict[int, float] = field(default_factory=dict)  # members that have asked, and when
    used_s: float = 0.0
    waited_s: float = 0.0
    turns: int = 0
    cost_s: float = 0.0  # of the last step, per weight
    step_virtual_s: float = 0.0  # `virtual_s` at the end of that step
    step_used_s: float = 0.0  # `used_s` at the last end of a step here

    @property
    def key_s(self) -> float:
        return self.virtual_s if self.position is None else self.position.virtual_s

    @property
    def step_s(self) -> float:
        """Device time per weight of one step."""
        return self.cost_s if self.position is None else self.position.cost_s

    @property
    def begun_s(self) -> float:
        """Device time that the current step has used."""
        return self.used_s - self.step_used_s

    @property
    def rest_s(self) -> float:
        """Device time that the current step still needs, if it costs as much as the last one."""
        return self.step_s * self.terms.weight - self.begun_s

    @property
    def order_key(self) -> tuple[bool, float, str]:
        """Sort key: the lowest goes first.  The job's identity breaks ties the same way on all hosts."""
        return not self.terms.is_urgent, self.key_s, self.terms.job

    def raise_to(self, virtual_s: float) -> None:
        """Raise the count to at least this much, without adding to the cost of a step."""
        missing_s = max(0.0, virtual_s - self.virtual_s)
        self.virtual_s += missing_s
        self.step_virtual_s += missing_s


@dataclass
class CurrentTurn:
    """Turn in progress.  It ends when none of its workers computes."""

    account: Account
    since_s: float
    computing: set[int]
    is_race: bool = False  # its job was the first to ask for a free device, not the first of several that wait
    is_recalled: bool = False


class Turns:
    """Turns of one device.  The caller numbers the members, and must not pass the number of an unknown one."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self.accounts: dict[str, Account] = {}
        self.turn: CurrentTurn | None = None
        self._jobs: dict[int, str] = {}
        self._unsettled: set[int] = set()  # members that have not given back since `NowShared` was sent to them
        self._charged_s = 0.0  # the turn's time is on its account up to here
        self._virtual_s = 0.0  # the count of the job that was served last: new jobs start with it

    # Actions of workers

    def join(self, member: int, terms: JobTerms, now: float) -> Instructions:
        """Add a worker, which does not compute yet."""
        self._charge(now)
        before = list(self.accounts.values())
        account = self.accounts.setdefault(terms.job, Account(terms, self._virtual_s, step_virtual_s=self._virtual_s))
        account.members.add(member)
        self._jobs[member] = terms.job
        if self.is_alone:
            return [(member, NowAlone())]
        if before == [account] or len(before) != 1:
            return []
        # So far the other job did not have to ask: it may be computing.
        self.turn = CurrentTurn(before[0], now, set(before[0].members))
        self._unsettled = set(before[0].members)
        self._charged_s = now
        return _address(NowShared(), before[0].members)

    def leave(self, member: int, now: float) -> Instructions:
        """Remove a worker that has left or died."""
        self._charge(now)
        account = self._account_of(member)
        self._drop(member, now)
        account.members.remove(member)
        del self._jobs[member]
        if not account.members:
            del self.accounts[account.terms.job]
            if self.is_alone:
                return self._free(now)
        return self._decide(now)

    def ask(self, member: int, now: float, position: JobPosition | None = None) -> Instructions:
        """Let a worker compute as soon as it may.  A worker that still has a turn gives it back by asking."""
        self._charge(now)
        account = self._account_of(member)
        if self.is_alone:
            return [(member, Grant())]
        if member in self._unsettled:
            return []  # sent before it was alone: it may be computing by now, and gives back before it asks again
        was_free = self.turn is None
        self._drop(member, now)
        account.position = position if position is not None else account.position
        account.waiting[member] = now
        return self._decide(now, was_free=was_free)

    def give(self, member: int, now: float) -> Instructions:
        """Note that a worker no longer computes; its turn may have passed on already."""
        self._charge(now)
        self._drop(member, now)
        return self._decide(now)

    def mark_step(self, member: int, now: float) -> None:
        """Note that a worker has ended a step."""
        self._charge(now)
        account = self._account_of(member)
        account.step_used_s = account.used_s

    def end_step(self, member: int, step: int, now: float, *, steps: int = 1) -> Instructions:
        """Note that a job's first worker has ended this many steps since its last report."""
        self.mark_step(member, now)
        account = self._account_of(member)
        # The count of a job that mostly waits for the network stays low.  It must not become a credit that keeps the
        # others waiting for minutes.
        account.raise_to(self._virtual_s - CREDIT_S)
        account.cost_s = max(0.0, account.virtual_s - account.step_virtual_s) / steps
        account.step_virtual_s = account.virtual_s
        return [(member, DeviceTime(step, account.virtual_s, account.cost_s))]

    def lift(self, member: int, to_s: float) -> None:
        """Raise the count of a job that is far behind the jobs of another host, which have been running for longer.

        It must not make up for their past.
        """
        # An absolute count, not a difference: every host repeats it in every turn until it has the new count.
        self._account_of(member).raise_to(to_s)

    def report(self, member: int, used_s: float) -> None:
        """Add the device time that a worker has used while it was alone."""
        account = self._account_of(member)
        account.used_s += used_s / len(account.members)
        account.virtual_s += used_s / len(account.members) / account.terms.weight
        self._virtual_s = max(self._virtual_s, account.virtual_s)

    def tick(self, now: float) -> Instructions:
        """Pass on a turn that exceeds the lease, if another job waits for it."""
        self._charge(now)
        if self.turn is None or self.deadline_s is None or now < self.deadline_s:
            return []
        overdue = _address(Overdue(now - self.turn.since_s), self.turn.computing)
        self.turn = None
        return overdue + self._decide(now)

    @property
    def deadline_s(self) -> float | None:
        """The latest time at which `tick` must be called."""
        if self.turn is None or not any(a.waiting for a in self.accounts.values() if a is not self.turn.account):
            return None
        return self.turn.since_s + self.lease_s

    @property
    def is_alone(self) -> bool:
        return len(self.accounts) <= 1

    # Inside

    def _account_of(self, member: int) -> Account:
        return self.accounts[self._jobs[member]]

    def _drop(self, member: int, now: float) -> None:
        """Note that a member no longer waits or computes."""
        account = self._account_of(member)
        self._unsettled.discard(member)
        since_s = account.waiting.pop(member, None)
        if since_s is not None:
            account.waited_s += (now - since_s) / len(account.members)
        if self.turn is not None:
            self.turn.computing.discard(member)
            if not self.turn.computing:
                self.turn = None

    def _charge(self, now: float) -> None:
        """Charge the turn's time to its account."""
        if self.turn is not None:
            used_s = max(0.0, now - max(self._charged_s, self.turn.since_s))
            self.turn.account.used_s += used_s
            self.turn.account.virtual_s += used_s / self.turn.account.terms.weight
        self._charged_s = max(self._charged_s, now)

    def _decide(self, now: float, *, was_free: bool = False) -> Instructions:
        first = min((a for a in self.accounts.values() if a.waiting), key=lambda a: a.order_key, default=None)
        if first is None:
            return []
        if self.turn is None:
            self.turn = CurrentTurn(first, now, set(), is_race=was_free)
            first.turns += 1
        if first is self.turn.account:
            return [] if self.turn.is_recalled else list(self._grant_all(self.turn, now))
        if not self.turn.is_recalled and _goes_before(first, self.turn):
            self.turn.is_recalled = True
            return _address(Recall(), self.turn.computing)
        return []

    def _grant_all(self, turn: CurrentTurn, now: float) -> Iterator[tuple[int, Grant]]:
        account = turn.account
        least_s = self._virtual_s - CREDIT_S
        lift_s = least_s if account.key_s < least_s else 0.0
        for member, since_s in list(account.waiting.items()):
            account.waited_s += (now - since_s) / len(account.members)
            turn.computing.add(member)
            yield member, Grant(lift_s)
        account.waiting.clear()
        self._virtual_s = max(self._virtual_s, account.key_s)

    def _free(self, now: float) -> Instructions:
        """End all turns: one job is left, or none."""
        for account in self.accounts.values():
            for member in list(account.waiting):
                self._drop(member, now)
            account.position = None  # the counts of other hosts no longer matter
        self.turn = None
        self._unsettled.clear()
        return [item for account in self.accounts.values() for item in _address(NowAlone(), account.members)]


def _address(instruction: Instruction, members: Iterable[int]) -> Instructions:
    return [(member, instruction) for member in sorted(members)]


def _goes_before(first: Account, turn: CurrentTurn) -> bool:
    """Return whether this job takes the turn over before its holder gives it back."""
    holder = turn.account
    if first.order_key > holder.order_key:
        return False
    if first.terms.is_urgent is not holder.terms.is_urgent:
        return True
    is_young = holder.begun_s < YOUNG * holder.step_s * holder.terms.weight
    is_far = first.key_s + FAR * min(first.step_s, holder.step_s) < holder.key_s
    return (is_young and (turn.is_race or is_far)) or (is_far and first.rest_s < holder.rest_s)
