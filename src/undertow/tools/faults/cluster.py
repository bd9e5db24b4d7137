"""Workers of one job in one thread, and a seeded driver that decides what happens next.

In: a case, scripts, planned faults.  Out: the case's log, or `Broken`.
One event follows another: a script continues, a link delivers, an engine runs what is due, a helper works, or time
passes.  After every event all invariants are checked.  If no worker can continue even after some time, it is a
deadlock.  Time passes only after every frame older than the longest delay is delivered and every running engine has run
what is due.  So a worker that is silent for longer than the timeout is stopped, dead or cut off.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from undertow.engine.client.group import ConnectedGroup
from undertow.engine.client.waiting import FIRST_NOTICE_S
from undertow.engine.core.rounds import Op
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Cut, Placement, Slice, TensorSpec, cut
from undertow.sizing import Sizes
from undertow.tools.faults.event_log import Broken, Case
from undertow.tools.faults.invariants import Invariants
from undertow.tools.faults.network import FaultyNetwork, Link
from undertow.tools.faults.worker import MOMENT, Script, State, VirtualLoop, Worker
from undertow.tools.virtual.world import Clock

SILENCE_S = 10.0
LONGEST_DELAY_S = 2.0  # of a frame between two workers that run
# Longer than all of our timeouts in a row: a longer wait counts as one without end.
PATIENCE_S = 60.0
MOST_EVENTS = 200_000
CREDITS = [2, 2, 3, 5, 50]  # slices
SPEEDS = [1, 10, 100, 1000]  # weights: some links and workers are a thousand times slower than others


@dataclass(frozen=True, slots=True)
class Event:
    """Event that may happen next, with a probability in proportion to its weight."""

    weight: int
    happen: Callable[[], None]


class Cluster:
    """Workers of one job in one thread, their network, and the driver that decides what happens next."""

    def __init__(
        self, case: Case, *, fewest_workers: int = 1, most_workers: int = 5, most_credit: int = 50, job: int = 7
    ) -> None:
        self.seed, self.job = case.seed, job
        self.random = random.Random(f"{case.seed}/{job}")
        # Small clusters are more frequent: most faults show with three workers.
        self.size = min(max(fewest_workers, self.random.choice([1, 2, 2, 3, 3, 4, 5])), most_workers)
        self.slice_bytes = 16 * self.random.randint(2, 12)
        self.credit_bytes = self.slice_bytes * min(most_credit, self.random.choice(CREDITS))
        self.time_share = self.random.choice([0.0, 0.002, 0.01])  # of events in which time passes although others can
        self._changes_credit = False
        self.asks_who_is_missing = False  # now and then
        self.clock = Clock()
        self.network = FaultyNetwork(self.size, self.clock)
        self.events = 0
        self.workers = [self._make_worker(rank) for rank in range(self.size)]
        self.log = case.log
        self.note(f"job {job}: {self.size} workers, slices of {self.slice_bytes}, credit of {self.credit_bytes} bytes")
        self.invariants = Invariants(self)
        self._placement = Placement(self.workers[0].group.shape.owners)
        self._next_key = 0
        self._plans: list[tuple[int, Callable[[], None]]] = []
        self._continued_s = 0.0  # when a script or a call of the clock last ran
        self._make_events()
        self.network.connect([worker.group.receiver for worker in self.workers])
        for worker in self.workers:
            worker.group.start()

    def _make_worker(self, rank: int) -> Worker:
        shape = Shape(
            rank=rank,
            hosts=[f"host{peer}" for peer in range(self.size)],
            job=self.job,
            sizes=Sizes(fixed=self.slice_bytes),
            credit_bytes=self.credit_bytes,
            silence_timeout_s=SILENCE_S,
            stall_timeout_s=1800.0,
        )
        loop = VirtualLoop(self.clock)
        stand_in: Any = loop
        group = ConnectedGroup(shape, stand_in, self.network.transports[rank], self.clock)
        return Worker(self, rank, group, loop)

    def _make_events(self) -> None:
        ranks = range(self.size)
        speed = self.random.choice([[1], SPEEDS[:2], SPEEDS])
        self._deliveries = {
            (sender, receiver): Event(self.random.choice(speed), partial(self._deliver, (sender, receiver)))
            for sender in ranks
            for receiver in ranks
            if sender != receiver
        }
        self._steps, self._engines, self._helpers = (
            [Event(self.random.choice(speed), partial(happen, worker)) for worker in self.workers]
            for happen in (self._run_script, self._run_engine, self._help)
        )

    # For scenarios

    def register(self, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0) -> list[Slice]:
        """Register these tensors on all ranks, as if they had agreed on them."""
        slices = cut(tensors, Cut(self._next_key, self.slice_bytes), op=op, keep=keep, placement=self._placement)
        self._next_key += max(keys, len(slices))
        for worker in self.workers:
            worker.exchange.learn(slices)
        return slices

    def start(self, rank: int, script: Script) -> None:
        self.workers[rank].script = script
        self.workers[rank].wait = MOMENT

    def start_all(self, make_script: Callable[[Worker], Script]) -> None:
        for worker in self.workers:
            self.start(worker.rank, make_script(worker))

    def plan(self, event: int, fault: Callable[[], None]) -> None:
        """Plan a fault before the event of this number."""
        self._plans.append((event, fault))
        self._plans.sort(key=lambda plan: plan[0])

    def note(self, event: str, *, is_routine: bool = False) -> None:
        self.log.note(event, is_routine=is_routine)

    def check(self, condition: bool, claim: str) -> None:
        if not condition:
            self.fail(claim)

    def fail(self, claim: str) -> None:
        """Raise `Broken`.  An engine catches what is raised in it, so the driver raises it again after the event."""
        broken = self.invariants.broken = self.invariants.broken or Broken(claim, self.log)
        raise broken

    def slow_links(self) -> None:
        """Make frames slow: scripts that can continue do so first."""
        self._steps = [replace(event, weight=100 * max(SPEEDS)) for event in self._steps]

    # Faults

    def change_credit(self) -> None:
        """Change the credit of single ranks now and then."""
        self._changes_credit = True
        self.invariants.most_in_flight_bytes = max(CREDITS) * self.slice_bytes

    def kill(self, rank: int, kept: Callable[[int], int]) -> None:
        """Kill a rank's process.  Of its frames in flight on each link, the first `kept` arrive."""
        worker = self.workers[rank]
        if worker.is_closed or worker.state is State.DEAD:
            return
        self.note(f"rank {rank} is killed; it was waiting for {worker.wait.what}")
        self.invariants.may_be_named.add(rank)
        worker.state, worker.script = State.DEAD, None
        for peer in range(self.size):
            if peer != rank:
                self.network.lose_tail((rank, peer), kept(self.network.frames_on((rank, peer))))
        self.network.transports[rank].close()

    def cut(self, one: int, other: int, kept: Callable[[int], int]) -> None:
        """Break the link between two ranks; both will notice."""
        self.note(f"the link between {one} and {other} is cut")
        self.invariants.may_be_named |= {one, other}
        for link in ((one, other), (other, one)):
            self.network.end_link(link, kept(self.network.frames_on(link)), "its connection broke (cut)")

    def stop(self, rank: int) -> None:
        if self.workers[rank].is_running:
            self.note(f"rank {rank} is stopped")
            self.workers[rank].state = State.STOPPED

    def resume(self, rank: int) -> None:
        if self.workers[rank].state is State.STOPPED:
            self.note(f"rank {rank} runs again")
            self.workers[rank].state = State.RUNNING

    # The driver

    def run(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Run events until all scripts have ended and no frame is in flight, or the condition holds."""
        while not until():
            if self._plans and self._plans[0][0] <= self.events:
                self._plans.pop(0)[1]()
            event = self._choose()
            if event is None:
                return
            self.events += 1
            event.happen()
            self.invariants.check()
            if self.events > MOST_EVENTS:
                self.fail(f"there is no end: {self.events} events")

    def _choose(self) -> Event | None:
        choices = self._choices()
        pick = self.random
        if (not choices or pick.random() < self.time_share) and self._is_waited_for():
            passage = self._passage()
            if passage is not None:
                return passage
        if not choices:
            return None
        if self._changes_credit and pick.random() < 0.05:
            self._change_credit()
        if self.asks_who_is_missing and pick.random() < 0.01:
            self._ask_who_is_missing()
        return self._draw(choices)

    def _draw(self, choices: list[Event]) -> Event:
        """Draw one of them by its weight."""
        point = self.random.randrange(sum([event.weight for event in choices])) if len(choices) > 1 else 0
        for event in choices:
            point -= event.weight
            if point < 0:
                return event
        raise AssertionError("the weights do not add up")

    def _choices(self) -> list[Event]:
        choices = [self._deliveries[link] for link in self._open_links()]
        for rank, worker in enumerate(self.workers):
            if worker.state is State.RUNNING:
                if worker.script is not None and worker.wait.is_over():
                    choices.append(self._steps[rank])
                if worker.loop.is_due:
                    choices.append(self._engines[rank])
                if worker.helper:
                    choices.append(self._helpers[rank])
        return choices

    def _open_links(self) -> list[Link]:
        return [link for link in self.network.links_with_frames() if self.workers[link[1]].is_running]

    def _is_waited_for(self) -> bool:
        return self.clock.next_s < math.inf or any(worker.is_running and worker.script for worker in self.workers)

    def _passage(self) -> Event | None:
        """Return the passing of time, or an event that must come before; None if a script can continue without."""
        due_s = min([self.clock.next_s, *(worker.loop.next_due_s for worker in self.workers if worker.is_running)])
        is_too_long = self.clock.next_s == math.inf and self.clock.now_s - self._continued_s > PATIENCE_S
        if due_s == math.inf or is_too_long:
            if any(worker.is_running and worker.is_ready for worker in self.workers):
                return None
            self.fail(f"deadlock: {self.invariants.describe_waits()}")
        for worker in self.workers:
            if worker.is_running and worker.loop.is_due:
                return self._engines[worker.rank]
        # Timers of a busy engine run a little late.
        to_s = max(due_s, self.clock.now_s) + self.random.choice([0.0, 0.0, 0.01, 0.3])
        for link in self._open_links():
            if self.network.waiting_since_s(link) + LONGEST_DELAY_S < to_s:
                return self._deliveries[link]
        return Event(1, lambda: self._pass_time(to_s))

    def _pass_time(self, to_s: float) -> None:
        self.clock.now_s = to_s
        self.note(f"it is {to_s:.3f} s", is_routine=True)
        while self.clock.next_s <= to_s:
            self.clock.pop()()
            self._continued_s = to_s
        for worker in self.workers:
            # As in `Waiters`, which after a while names the ranks that a training thread waits for.
            if worker.is_running and worker.script and to_s - worker.waits_since_s > FIRST_NOTICE_S:
                worker.waits_since_s = to_s
                worker.ask_who_is_missing()

    def _deliver(self, link: Link) -> None:
        body = self.network.next_body(link)
        header = self.network.deliver(*link)
        self.log.note_delivery(*link, header, body)
        self.invariants.delivered(link, header)

    def _run_script(self, worker: Worker) -> None:
        self._continued_s = worker.waits_since_s = self.clock.now_s
        if worker.run_script():
            self.note(f"rank {worker.rank} continues, then waits for {worker.wait.what}")
        else:
            self.note(f"rank {worker.rank} has ended")

    def _run_engine(self, worker: Worker) -> None:
        self.note(f"the engine of rank {worker.rank} runs what is due", is_routine=True)
        worker.loop.run_due()

    def _help(self, worker: Worker) -> None:
        self.note(f"the helper of rank {worker.rank} works")
        worker.helper.popleft()()

    def _change_credit(self) -> None:
        worker, slices = self.random.choice(self.workers), self.random.choice(CREDITS)
        self.note(f"rank {worker.rank} has a credit of {slices} slices")
        worker.change_credit(slices * self.slice_bytes)

    def _ask_who_is_missing(self) -> None:
        worker = self.random.choice(self.workers)
        if worker.is_running:
            self.note(f"rank {worker.rank} asks who is missing")
            worker.ask_who_is_missing()
