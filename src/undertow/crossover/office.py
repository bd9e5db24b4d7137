"""The arbiter's mind: all devices of a host, the workers on them, and what is known of their steps.

In: messages of workers, the time.  Out: messages to workers.  No sockets, no clock.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from undertow.bounds import WEIGHT
from undertow.crossover import messages, turns
from undertow.crossover.admission import find_obstacle
from undertow.crossover.gain import Load, explain_no_gain, predict_gain
from undertow.crossover.messages import DeviceStatus, FromArbiter, Hello, JobStatus, ToArbiter
from undertow.crossover.turns import Account, Place, Terms, Turns
from undertow.errors import Garbled

# Steps of which a job's load is made, and the least of them that say something.
WINDOW, ENOUGH = 32, 8
NOTICES = 20
MOST_JOBS = 8

Letters = list[tuple[int, FromArbiter]]


@dataclass(eq=False)
class Guest:
    """A worker that was welcomed."""

    hello: Hello
    since_s: float
    steps: int = 0
    network_s: float = 0.0
    overdue: int = 0
    compute: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    exposed: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))


class Office:
    """Of one host.  Members are numbers of the caller's, never used twice."""

    def __init__(self, lease_s: float = turns.LEASE_S) -> None:
        self.lease_s = lease_s
        self.notices: deque[str] = deque(maxlen=NOTICES)
        self.devices: dict[str, Turns] = {}
        self._guests: dict[int, Guest] = {}
        self._said: set[frozenset[str]] = set()  # pairs of jobs that cannot gain

    # What comes in

    def hear(self, member: int, message: ToArbiter, now: float) -> Letters:
        """Raises `Garbled` if a worker says what it must not."""
        if isinstance(message, Hello):
            return self._welcome(member, message, now)
        guest = self._guests.get(member)
        if guest is None:
            raise Garbled(f"a {type(message).__name__} without a Hello")
        device = self.devices[guest.hello.device]
        match message:
            case messages.Ask(None, _):
                return self._carry_out(device.ask(member, now), device)
            case messages.Ask(virtual_s, cost_s):
                assert virtual_s is not None
                return self._carry_out(device.ask(member, now, Place(virtual_s, max(0.0, cost_s))), device)
            case messages.Give():
                return self._carry_out(device.give(member, now), device)
            case messages.EndStep():
                return self._end_step(member, guest, message, now)
            case messages.Lift(to_s):
                device.lift(member, to_s)
                return []
        raise Garbled(f"a {type(message).__name__} from a worker")

    def gone(self, member: int, now: float) -> Letters:
        """A worker's connection is closed."""
        guest = self._guests.pop(member, None)
        if guest is None:
            return []
        device = self.devices[guest.hello.device]
        letters = self._carry_out(device.leave(member, now), device)
        if not device.accounts:
            del self.devices[guest.hello.device]
        return letters

    def tick(self, now: float) -> Letters:
        return [letter for device in self.devices.values() for letter in self._carry_out(device.tick(now), device)]

    @property
    def deadline_s(self) -> float | None:
        """When `tick` is due."""
        return min((d.deadline_s for d in self.devices.values() if d.deadline_s is not None), default=None)

    # What there is to tell

    def describe(self, now: float) -> list[DeviceStatus]:
        return [self._describe_device(name, device, now) for name, device in sorted(self.devices.items())]

    def find_load(self, device: Turns, job: str) -> Load | None:
        """What a step of this job takes when it is alone, as far as that can be seen."""
        guests = [self._guests[member] for member in device.accounts[job].members]
        compute = [seconds for guest in guests for seconds in guest.compute]
        exposed = sorted(seconds for guest in guests for seconds in guest.exposed)
        if len(compute) < ENOUGH:
            return None
        # Beside others a job may wait for workers of its own that wait for their turn: the short waits tell.
        return Load(statistics.median(compute), exposed[len(exposed) // 4])

    # Inside

    def _welcome(self, member: int, hello: Hello, now: float) -> Letters:
        if member in self._guests:
            raise Garbled("a second Hello")
        if hello.version != messages.VERSION:
            reason = f"the arbiter speaks version {messages.VERSION}, this worker version {hello.version}: restart it"
            return [(member, messages.Refusal(reason))]
        if not WEIGHT.least <= hello.weight <= WEIGHT.most:
            words = f"a weight of {hello.weight:g} is not possible: give {WEIGHT.describe()}"
            return [(member, messages.Refusal(words))]
        device = self.devices.setdefault(hello.device, Turns(self.lease_s))
        if refusal := self._find_obstacle(device, hello):
            if not device.accounts:
                del self.devices[hello.device]
            return [(member, messages.Refusal(refusal))]
        self._guests[member] = Guest(hello, now)
        terms = Terms(job=hello.job, weight=hello.weight, is_urgent=hello.is_urgent)
        welcome: Letters = [(member, messages.Welcome(self.lease_s))]
        return welcome + self._carry_out(device.join(member, terms, now), device)

    def _find_obstacle(self, device: Turns, hello: Hello) -> str | None:
        if hello.job not in device.accounts and len(device.accounts) >= MOST_JOBS:
            return f"{MOST_JOBS} jobs share {hello.device} already: start this one later, or without sharing"
        others = [
            guest.hello.growth_bytes if guest.steps < 2 else 0
            for guest in self._guests.values()
            if guest.hello.device == hello.device and guest.hello.job != hello.job
        ]
        return find_obstacle(hello.growth_bytes, hello.free_bytes, others_bytes=others)

    def _end_step(self, member: int, guest: Guest, message: messages.EndStep, now: float) -> Letters:
        device = self.devices[guest.hello.device]
        if message.steps < 1:
            raise Garbled(f"{message.steps} steps have ended")
        guest.steps += message.steps
        guest.network_s += message.network_s
        guest.compute.append(message.compute_s / message.steps)
        guest.exposed.append(message.network_s / message.steps)
        if message.is_alone:
            device.report(member, message.compute_s)
        letters: Letters = []
        if guest.hello.rank != 0:
            device.mark_step(member, now)
        else:
            letters = self._carry_out(device.end_step(member, message.step, now, steps=message.steps), device)
            letters += self._say_who_cannot_gain(device, guest.hello.job)
        return letters

    def _say_who_cannot_gain(self, device: Turns, job: str) -> Letters:
        letters: Letters = []
        for other in device.accounts:
            pair = frozenset((job, other))
            loads = [self.find_load(device, one) for one in (job, other)]
            if other == job or pair in self._said or None in loads:
                continue
            self._said.add(pair)
            names = [self._name_of(device.accounts[one]) for one in (job, other)]
            words = explain_no_gain(names, [load for load in loads if load is not None])
            if words is not None:
                letters += self._notify(words, [device.accounts[one] for one in (job, other)])
        return letters

    def _carry_out(self, instructions: Sequence[turns.Instruction], device: Turns) -> Letters:
        letters: Letters = []
        for item in instructions:
            match item:
                case turns.Grant(member, lift_s):
                    letters.append((member, messages.Grant(lift_s)))
                case turns.Recall(member):
                    letters.append((member, messages.Recall()))
                case turns.Company(member):
                    letters.append((member, messages.Company()))
                case turns.Solitude(member):
                    letters.append((member, messages.Solitude()))
                case turns.Standing(member, step, virtual_s, cost_s):
                    letters.append((member, messages.Standing(step, virtual_s, cost_s)))
                case turns.Overdue(member, held_s):
                    letters += self._name_overdue(member, held_s, device)
        return letters

    def _name_overdue(self, member: int, held_s: float, device: Turns) -> Letters:
        guest = self._guests[member]
        guest.overdue += 1
        hello = guest.hello
        words = (
            f"rank {hello.rank} of {hello.name} (pid {hello.pid}) has computed on {hello.device} for {held_s:.0f} s "
            "without giving back, or is stopped: the turn passes on"
        )
        return self._notify(words, list(device.accounts.values()))

    def _notify(self, words: str, accounts: Sequence[Account]) -> Letters:
        """To one worker of each job, and for whoever asks for the status."""
        self.notices.append(words)
        return [(min(account.members), messages.Notice(words)) for account in accounts]

    def _name_of(self, account: Account) -> str:
        return self._guests[min(account.members)].hello.name

    def _describe_device(self, name: str, device: Turns, now: float) -> DeviceStatus:
        turn = device.turn
        loads = [self.find_load(device, job) for job in device.accounts]
        known = [load for load in loads if load is not None]
        return DeviceStatus(
            device=name,
            holder=None if turn is None else turn.account.terms.job,
            held_s=0.0 if turn is None else now - turn.since_s,
            jobs=list(self._describe_jobs(device, now)),
            gain=predict_gain(known) if known and len(known) == len(loads) else None,
        )

    def _describe_jobs(self, device: Turns, now: float) -> Iterator[JobStatus]:
        for job, account in device.accounts.items():
            members = sorted(account.members)
            guests = [self._guests[member] for member in members]
            hello = guests[0].hello
            load = self.find_load(device, job)
            yield JobStatus(
                job=job,
                name=hello.name,
                pids=[guest.hello.pid for guest in guests],
                ranks=[guest.hello.rank for guest in guests],
                world_size=hello.world_size,
                weight=hello.weight,
                is_urgent=hello.is_urgent,
                state=_describe_state(device, account),
                steps=max(guest.steps for guest in guests),
                turns=account.turns,
                device_s=account.used_s,
                waited_s=account.waited_s + _still_waited_s(account, now),
                network_s=statistics.fmean(guest.network_s for guest in guests),
                compute_s=None if load is None else load.compute_s,
                exposed_s=None if load is None else load.exposed_s,
                since_s=now - min(guest.since_s for guest in guests),
                overdue=sum(guest.overdue for guest in guests),
            )


def _describe_state(device: Turns, account: Account) -> str:
    if device.is_alone:
        return "is alone"
    if device.turn is not None and device.turn.account is account:
        return "computes"
    return "waits for its turn" if account.waiting else "waits for the network"


def _still_waited_s(account: Account, now: float) -> float:
    return sum(now - since_s for since_s in account.waiting.values()) / len(account.members)
