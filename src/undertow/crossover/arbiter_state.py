"""State of one host's arbiter: its devices, the workers on them, and the measurements of their steps.

In: messages from workers, the time.  Out: messages to workers.  Uses no sockets and no clock.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from undertow.bounds import WEIGHT
from undertow.crossover import messages, turns
from undertow.crossover.gain import Load, explain_no_gain, predict_gain
from undertow.crossover.messages import DeviceStatus, FromArbiter, Hello, JobStatus, ToArbiter
from undertow.crossover.turns import Account, Instructions, JobPosition, JobTerms, Overdue, Turns
from undertow.errors import Garbled
from undertow.units import format_bytes, format_seconds

# A job's load is a median over its last WINDOW steps, known once there are ENOUGH of them.
WINDOW, ENOUGH = 32, 8
NOTICES = 20
MOST_JOBS = 8

Outgoing = list[tuple[int, FromArbiter]]  # each with the member that receives it


@dataclass(eq=False)
class Member:
    """Worker that was accepted, and what it has reported."""

    hello: Hello
    since_s: float
    steps: int = 0
    network_s: float = 0.0
    overdue: int = 0
    compute: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    exposed: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))


class ArbiterState:
    """State of one host's arbiter.  The caller numbers the members and never reuses a number."""

    def __init__(self, lease_s: float = turns.LEASE_S) -> None:
        self.lease_s = lease_s
        self.notices: deque[str] = deque(maxlen=NOTICES)
        self.devices: dict[str, Turns] = {}
        self._members: dict[int, Member] = {}
        self._judged: set[frozenset[str]] = set()  # pairs of jobs whose gain has been predicted

    # Input

    def handle(self, number: int, message: ToArbiter, now: float) -> Outgoing:
        """Return the messages to send.  Raises `Garbled` if a worker breaks the protocol."""
        if isinstance(message, Hello):
            return self._welcome(number, message, now)
        member = self._members.get(number)
        if member is None:
            raise Garbled(f"a {type(message).__name__} without a Hello")
        device = self.devices[member.hello.device]
        match message:
            case messages.Ask(virtual_s, cost_s):
                position = None if virtual_s is None else JobPosition(virtual_s, cost_s)
                return self._carry_out(device.ask(number, now, position), device)
            case messages.Give():
                return self._carry_out(device.give(number, now), device)
            case messages.EndStep():
                return self._end_step(number, member, message, now)
            case messages.Lift(to_s):
                device.lift(number, to_s)
                return []
        raise Garbled(f"a {type(message).__name__} from a worker")

    def remove(self, number: int, now: float) -> Outgoing:
        member = self._members.pop(number, None)
        if member is None:
            return []
        device = self.devices[member.hello.device]
        outgoing = self._carry_out(device.leave(number, now), device)
        if not device.accounts:
            del self.devices[member.hello.device]
        return outgoing

    def tick(self, now: float) -> Outgoing:
        """Pass on the turns that exceed the lease."""
        return [item for device in self.devices.values() for item in self._carry_out(device.tick(now), device)]

    @property
    def deadline_s(self) -> float | None:
        """Time at which `tick` is due."""
        return min((d.deadline_s for d in self.devices.values() if d.deadline_s is not None), default=None)

    # Status

    def describe(self, now: float) -> list[DeviceStatus]:
        return [self._describe_device(name, device, now) for name, device in sorted(self.devices.items())]

    def find_load(self, device: Turns, job: str) -> Load | None:
        """Return the load of a step of this job as if it were alone; None before enough steps are known."""
        members = [self._members[number] for number in device.accounts[job].members]
        compute = [seconds for member in members for seconds in member.compute]
        exposed = sorted(seconds for member in members for seconds in member.exposed)
        if len(compute) < ENOUGH:
            return None
        # A job that shares may also wait for its workers on other hosts, which wait for their turns.  So only its short
        # waits tell how long the network takes.
        return Load(statistics.median(compute), exposed[len(exposed) // 4])

    # Inside

    def _welcome(self, number: int, hello: Hello, now: float) -> Outgoing:
        if number in self._members:
            raise Garbled("a second Hello")
        device = self.devices.setdefault(hello.device, Turns(self.lease_s))
        if reason := self._find_refusal(device, hello):
            if not device.accounts:
                del self.devices[hello.device]
            return [(number, messages.Refusal(reason))]
        self._members[number] = Member(hello, now)
        terms = JobTerms(job=hello.job, weight=hello.weight, is_urgent=hello.is_urgent)
        welcome: Outgoing = [(number, messages.Welcome(self.lease_s))]
        return welcome + self._carry_out(device.join(number, terms, now), device)

    def _find_refusal(self, device: Turns, hello: Hello) -> str | None:
        if hello.version != messages.VERSION:
            return (
                f"the arbiter has version {messages.VERSION}, this worker version {hello.version}: restart the arbiter"
            )
        if not WEIGHT.least <= hello.weight <= WEIGHT.most:
            return f"a weight of {hello.weight:g} is not possible: give {WEIGHT.describe()}"
        if hello.job not in device.accounts and len(device.accounts) >= MOST_JOBS:
            return f"{MOST_JOBS} jobs already share {hello.device}: start this one later, or without sharing"
        others = [
            member.hello.growth_bytes if member.steps < 2 else 0
            for member in self._members.values()
            if member.hello.device == hello.device and member.hello.job != hello.job
        ]
        return find_memory_obstacle(hello.growth_bytes, hello.free_bytes, others_bytes=others)

    def _end_step(self, number: int, member: Member, message: messages.EndStep, now: float) -> Outgoing:
        device = self.devices[member.hello.device]
        if message.steps < 1:
            raise Garbled(f"an EndStep after {message.steps} steps")
        member.steps += message.steps
        member.network_s += message.network_s
        member.compute.append(message.compute_s / message.steps)
        member.exposed.append(message.network_s / message.steps)
        if message.is_alone:
            device.report(number, message.compute_s)
        if member.hello.rank != 0:
            device.mark_step(number, now)
            return []
        outgoing = self._carry_out(device.end_step(number, message.step, now, steps=message.steps), device)
        return outgoing + self._report_pairs_without_gain(device, member.hello.job)

    def _report_pairs_without_gain(self, device: Turns, job: str) -> Outgoing:
        outgoing: Outgoing = []
        for other in device.accounts:
            pair = frozenset((job, other))
            loads = [self.find_load(device, one) for one in (job, other)]
            if other == job or pair in self._judged or None in loads:
                continue
            self._judged.add(pair)
            names = [self._name_of(device.accounts[one]) for one in (job, other)]
            text = explain_no_gain(names, [load for load in loads if load is not None])
            if text is not None:
                outgoing += self._notify(text, [device.accounts[one] for one in (job, other)])
        return outgoing

    def _carry_out(self, instructions: Instructions, device: Turns) -> Outgoing:
        """Return the instructions as messages: an `Overdue` becomes a notice to all jobs."""
        outgoing: Outgoing = []
        for number, instruction in instructions:
            if isinstance(instruction, Overdue):
                outgoing += self._report_overdue(number, instruction.held_s, device)
            else:
                outgoing.append((number, instruction))
        return outgoing

    def _report_overdue(self, number: int, held_s: float, device: Turns) -> Outgoing:
        member = self._members[number]
        member.overdue += 1
        hello = member.hello
        text = (
            f"rank {hello.rank} of {hello.name} (pid {hello.pid}) has computed on {hello.device} for "
            f"{format_seconds(held_s)} without giving the turn back, or is stopped: the turn passes to another job"
        )
        return self._notify(text, list(device.accounts.values()))

    def _notify(self, text: str, accounts: Sequence[Account]) -> Outgoing:
        """Send a notice to one worker of each job, and keep its text for the status."""
        self.notices.append(text)
        return [(min(account.members), messages.Notice(text)) for account in accounts]

    def _name_of(self, account: Account) -> str:
        return self._members[min(account.members)].hello.name

    def _describe_device(self, name: str, device: Turns, now: float) -> DeviceStatus:
        turn = device.turn
        loads = [self.find_load(device, job) for job in device.accounts]
        known = [load for load in loads if load is not None]
        return DeviceStatus(
            device=name,
            holder=None if turn is None else turn.account.terms.job,
            held_s=0.0 if turn is None else now - turn.since_s,
            jobs=[self._describe_job(device, account, now) for account in device.accounts.values()],
            gain=predict_gain(known) if known and len(known) == len(loads) else None,
        )

    def _describe_job(self, device: Turns, account: Account, now: float) -> JobStatus:
        members = [self._members[number] for number in sorted(account.members)]
        hello = members[0].hello
        load = self.find_load(device, account.terms.job)
        return JobStatus(
            job=account.terms.job,
            name=hello.name,
            pids=[member.hello.pid for member in members],
            ranks=[member.hello.rank for member in members],
            world_size=hello.world_size,
            weight=hello.weight,
            is_urgent=hello.is_urgent,
            state=_describe_state(device, account),
            steps=max(member.steps for member in members),
            turns=account.turns,
            device_s=account.used_s,
            waited_s=account.waited_s + _still_waited_s(account, now),
            network_s=statistics.fmean(member.network_s for member in members),
            compute_s=None if load is None else load.compute_s,
            exposed_s=None if load is None else load.exposed_s,
            since_s=now - min(member.since_s for member in members),
            overdue=sum(member.overdue for member in members),
        )


def find_memory_obstacle(growth_bytes: int, free_bytes: int, *, others_bytes: Sequence[int] = ()) -> str | None:
    """Return why a job that will allocate `growth_bytes` more does not fit; None if it may fit.

    Other jobs that have just started allocate `others_bytes` first.  Activations are not known in advance, so a job
    that passes this check may still run out of memory.
    """
    reserved = sum(others_bytes)
    if not others_bytes or growth_bytes + reserved <= free_bytes:
        return None
    reservation = f", of which other jobs are about to allocate {format_bytes(reserved)}" if reserved else ""
    return (
        f"the device does not have enough memory for another job: its gradients and its optimizer need "
        f"{format_bytes(growth_bytes)}, and {format_bytes(free_bytes)} are free{reservation}. Start it after another "
        "job has ended, or without sharing"
    )


def _describe_state(device: Turns, account: Account) -> str:
    if device.is_alone:
        return "is alone"
    if device.turn is not None and device.turn.account is account:
        return "computes"
    return "waits for its turn" if account.waiting else "waits for the network"


def _still_waited_s(account: Account, now: float) -> float:
    return sum(now - since_s for since_s in account.waiting.values()) / len(account.members)
