"""Crossover's policy: whose turn it is to compute on one device.

In: workers that come, ask, give back and leave; the time, as an argument.
Out: instructions: who may compute, who is called back, who has overstayed.
No sockets, no clock: the arbiter, the simulator and the fault test run the same code.

The turn belongs to a job; all its workers on the device compute in it.  Whoever waits for the
network hands it over.  Of the jobs that want it the one goes first that has had the least device
time for its weight, by a count that is the same on all hosts (see `standing`), so all hosts run the
jobs in the same order.  A job that should have gone first, but came a moment too late, or has far
less than its share, takes the turn over between two layers: the other one is recalled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

LEASE_S = 30.0
# A step of which less than this part is computed is as good as not begun: hosts on which two jobs came to a free
# device in different orders set it right, or one of them would compute A while the other computes B for ever.
YOUNG = 0.1
# A job is far behind if it has had less than the other by this part of a step: else it can wait until that one
# waits for the network, which happens once in a step.  So it can if that one has begun and is nearer to its end: whose
# communication could begin first goes first, and then both are busy.
FAR = 0.5
# The most that a job saves up by not computing, in seconds of device time per weight.
CREDIT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a job has asked for; the same on all its hosts."""

    job: str  # its identity
    weight: float = 1.0
    is_urgent: bool = False


@dataclass(frozen=True)
class Place:
    """Where a job stands in the order of all jobs, for one step."""

    virtual_s: float  # device time per weight that it has had
    cost_s: float  # the same for one step


@dataclass(frozen=True)
class Grant:
    """The worker may compute.  If its job is far behind the others' counts, its first worker should hear of
    `lift_s`: the least that the job counts as having had."""

    member: int
    lift_s: float = 0.0


@dataclass(frozen=True)
class Recall:
    """Another job goes first: give back between two layers, and ask again."""

    member: int


@dataclass(frozen=True)
class Company:
    """From now on the worker must ask; if it computes now it holds the turn, else it gives back."""

    member: int


@dataclass(frozen=True)
class Solitude:
    """Nobody else is here: the worker need not ask."""

    member: int


@dataclass(frozen=True)
class Overdue:
    """The worker has held the turn for longer than the lease, and has lost it."""

    member: int
    held_s: float


@dataclass(frozen=True)
class Standing:
    """To a job's first worker: what the job has had after this step, for all its workers."""

    member: int
    step: int
    virtual_s: float
    cost_s: float


Instruction = Grant | Recall | Company | Solitude | Overdue | Standing


@dataclass(eq=False)
class Account:
    """One job on one device."""

    terms: Terms
    virtual_s: float  # by this arbiter's own count
    place: Place | None = None  # by the count of all hosts, once there is one
    members: set[int] = field(default_factory=set)
    waiting: dict[int, float] = field(default_factory=dict)  # members that have asked, and when
    used_s: float = 0.0
    waited_s: float = 0.0
    turns: int = 0
    cost_s: float = 0.0  # of the last step, per weight
    step_virtual_s: float = 0.0  # `virtual_s` when that ended
    step_used_s: float = 0.0  # `used_s` when a step last ended here

    @property
    def key_s(self) -> float:
        return self.virtual_s if self.place is None else self.place.virtual_s

    @property
    def step_s(self) -> float:
        """Of a step, per weight."""
        return self.cost_s if self.place is None else self.place.cost_s

    @property
    def begun_s(self) -> float:
        """What it has computed of its step."""
        return self.used_s - self.step_used_s

    @property
    def rest_s(self) -> float:
        """What is left of its step, by what a step costs."""
        return self.step_s * self.terms.weight - self.begun_s

    @property
    def rank(self) -> tuple[bool, float, str]:
        """The lower one goes first; of equals always the same one."""
        return not self.terms.is_urgent, self.key_s, self.terms.job

    def raise_to(self, virtual_s: float) -> None:
        """It counts as having had so much at least, which is no cost of a step."""
        missing_s = max(0.0, virtual_s - self.virtual_s)
        self.virtual_s += missing_s
        self.step_virtual_s += missing_s


@dataclass
class Turn:
    """The one that goes on.  Ends when nobody computes in it any more."""

    account: Account
    since_s: float
    computing: set[int]
    is_race: bool = False  # it began because somebody came first, not because somebody goes first
    is_recalled: bool = False


class Turns:
    """Of one device.  Members are numbers of the caller's; a call about an unknown one is an error of the caller."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self.accounts: dict[str, Account] = {}
        self.turn: Turn | None = None
        self._jobs: dict[int, str] = {}
        self._unsettled: set[int] = set()  # members that were told of company and have not given back since
        self._charged_s = 0.0  # up to when the turn's time is on its account
        self._virtual_s = 0.0  # how far the job is that was served last: newcomers begin here

    # What workers do

    def join(self, member: int, terms: Terms, now: float) -> list[Instruction]:
        """A worker comes; it does not compute yet."""
        self._charge(now)
        before = list(self.accounts.values())
        account = self.accounts.setdefault(terms.job, Account(terms, self._virtual_s, step_virtual_s=self._virtual_s))
        account.members.add(member)
        self._jobs[member] = terms.job
        if self.is_alone:
            return [Solitude(member)]
        if before == [account] or len(before) != 1:
            return []
        # Until now the other job computed without asking: perhaps it does at this moment.
        self.turn = Turn(before[0], now, set(before[0].members))
        self._unsettled = set(before[0].members)
        self._charged_s = now
        return [Company(other) for other in sorted(before[0].members)]

    def leave(self, member: int, now: float) -> list[Instruction]:
        """A worker has gone, in order or not."""
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

    def ask(self, member: int, now: float, place: Place | None = None) -> list[Instruction]:
        """A worker wants to compute.  One that has not given back does so with this."""
        self._charge(now)
        account = self._account_of(member)
        if self.is_alone:
            return [Grant(member)]
        if member in self._unsettled:
            return []  # from before it was alone: by now it may compute, and gives back before it asks again
        was_free = self.turn is None
        self._drop(member, now)
        account.place = place if place is not None else account.place
        account.waiting[member] = now
        return self._decide(now, was_free=was_free)

    def give(self, member: int, now: float) -> list[Instruction]:
        """A worker does not compute any more; perhaps its turn had passed on already."""
        self._charge(now)
        self._drop(member, now)
        return self._decide(now)

    def mark_step(self, member: int, now: float) -> None:
        """A worker has ended a step."""
        self._charge(now)
        account = self._account_of(member)
        account.step_used_s = account.used_s

    def end_step(self, member: int, step: int, now: float, *, steps: int = 1) -> list[Instruction]:
        """The same of a job's first worker, or several steps since the last word."""
        self.mark_step(member, now)
        account = self._account_of(member)
        # Who waits for the network more than for the device has a low count for good: it must not become a debt
        # that the others would have to pay for minutes.
        account.raise_to(self._virtual_s - CREDIT_S)
        account.cost_s = max(0.0, account.virtual_s - account.step_virtual_s) / steps
        account.step_virtual_s = account.virtual_s
        return [Standing(member, step, account.virtual_s, account.cost_s)]

    def lift(self, member: int, to_s: float) -> None:
        """The job is behind on another host, where longer jobs are: it must not make up for their past."""
        # To where, not by how much: every host says it, in every turn, until the new count has come round.
        self._account_of(member).raise_to(to_s)

    def report(self, member: int, used_s: float) -> None:
        """A worker that was alone has computed for so long."""
        account = self._account_of(member)
        account.used_s += used_s / len(account.members)
        account.virtual_s += used_s / len(account.members) / account.terms.weight
        self._virtual_s = max(self._virtual_s, account.virtual_s)

    def tick(self, now: float) -> list[Instruction]:
        """Time has passed: a turn that is longer than the lease goes to who waits for it."""
        self._charge(now)
        if self.turn is None or self.deadline_s is None or now < self.deadline_s:
            return []
        overdue: list[Instruction] = [
            Overdue(member, now - self.turn.since_s) for member in sorted(self.turn.computing)
        ]
        self.turn = None
        return overdue + self._decide(now)

    @property
    def deadline_s(self) -> float | None:
        """When `tick` must be called at the latest."""
        if self.turn is None or not any(a.waiting for a in self.accounts.values() if a is not self.turn.account):
            return None
        return self.turn.since_s + self.lease_s

    @property
    def is_alone(self) -> bool:
        """Whether there is one job only."""
        return len(self.accounts) <= 1

    # Inside

    def _account_of(self, member: int) -> Account:
        return self.accounts[self._jobs[member]]

    def _drop(self, member: int, now: float) -> None:
        """It neither waits nor computes any more."""
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
        """Put the turn's time on its account."""
        if self.turn is not None:
            used_s = max(0.0, now - max(self._charged_s, self.turn.since_s))
            self.turn.account.used_s += used_s
            self.turn.account.virtual_s += used_s / self.turn.account.terms.weight
        self._charged_s = max(self._charged_s, now)

    def _decide(self, now: float, *, was_free: bool = False) -> list[Instruction]:
        first = min((a for a in self.accounts.values() if a.waiting), key=lambda a: a.rank, default=None)
        if first is None:
            return []
        if self.turn is None:
            self.turn = Turn(first, now, set(), is_race=was_free)
            first.turns += 1
        if first is self.turn.account:
            return [] if self.turn.is_recalled else list(self._let_in(self.turn, now))
        if not self.turn.is_recalled and _goes_before(first, self.turn):
            self.turn.is_recalled = True
            return [Recall(member) for member in sorted(self.turn.computing)]
        return []

    def _let_in(self, turn: Turn, now: float) -> Iterator[Grant]:
        account = turn.account
        least_s = self._virtual_s - CREDIT_S
        lift_s = least_s if account.key_s < least_s else 0.0
        for member, since_s in list(account.waiting.items()):
            account.waited_s += (now - since_s) / len(account.members)
            turn.computing.add(member)
            yield Grant(member, lift_s)
        account.waiting.clear()
        self._virtual_s = max(self._virtual_s, account.key_s)

    def _free(self, now: float) -> list[Instruction]:
        """One job is left, or none: there are no turns any more."""
        for account in self.accounts.values():
            for member in list(account.waiting):
                self._drop(member, now)
            account.place = None  # it is not counted on other hosts any more
        self.turn = None
        self._unsettled.clear()
        return [Solitude(member) for account in self.accounts.values() for member in sorted(account.members)]


def _goes_before(first: Account, turn: Turn) -> bool:
    """Whether this job does not wait until the other one's turn ends by itself."""
    holder = turn.account
    if first.rank > holder.rank:
        return False
    if first.terms.is_urgent is not holder.terms.is_urgent:
        return True
    is_young = holder.begun_s < YOUNG * holder.step_s * holder.terms.weight
    is_far = first.key_s + FAR * min(first.step_s, holder.step_s) < holder.key_s
    return (is_young and (turn.is_race or is_far)) or (is_far and first.rest_s < holder.rest_s)
