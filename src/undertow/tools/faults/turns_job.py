"""Virtual job that shares its devices; arbiters, connections and hosts that record what the claims need.

In: the job's traits, the hosts of its workers.  Out: messages to the arbiters, and when each step ended.
The workers train in lockstep, each with the real `TurnTaker`.
A step: load data, take the turn, compute the layers, end the step; then wait for the network, whose results come after
all workers have ended the step; then take a short turn for the optimizer.  With gates, a layer waits for the results
that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from undertow.crossover import messages
from undertow.crossover.messages import VERSION, Ask, FromArbiter, Hello, ToArbiter
from undertow.crossover.turns import Turns
from undertow.tools.faults.world import CheckedWorld
from undertow.tools.virtual.arbiter import Arbiter, Connection, Host
from undertow.tools.virtual.worker import JobWorkers, VirtualWorker
from undertow.tools.virtual.world import World

DEVICE = "gpu0"


class WatchedConnection(Connection):
    """Connection that records whether messages have crossed so that its two ends disagree."""

    arbiter: WatchedArbiter
    worker: Worker

    # Two jobs have come and gone while a message was in flight: the arbiter takes an old message for a new one, and the
    # worker computes beside another job once.
    is_crossed = False
    _releases = 0  # `NowAlone` messages in flight to the worker

    def send(self, message: ToArbiter) -> None:
        is_old = self._releases > 0 and isinstance(message, messages.Give)
        self._to_arbiter.carry(self._reach_arbiter, message, is_old)

    def answer(self, message: FromArbiter) -> None:
        self._releases += isinstance(message, messages.NowAlone)
        self._to_worker.carry(self._reach_worker, message)

    def _reach_arbiter(self, message: ToArbiter, is_old: bool) -> None:
        turns = self.arbiter.turns
        self.is_crossed |= is_old and turns is not None and not turns.is_alone
        self.arbiter.receive(self, message)

    def _reach_worker(self, message: FromArbiter) -> None:
        self._releases -= isinstance(message, messages.NowAlone)
        self.worker.receive(self, message)


class WatchedArbiter(Arbiter):
    """Arbiter that records which workers have exceeded the lease."""

    def __init__(self, world: World, home: Host) -> None:
        super().__init__(world, home)
        self.overdue: set[int] = set()  # members that lost their turn and have not given back since
        self.lapses = 0  # turns that exceeded the lease

    @property
    def turns(self) -> Turns | None:
        return self.state.devices.get(DEVICE)

    def receive(self, connection: Connection, message: ToArbiter) -> None:
        if isinstance(message, messages.Give):
            self.overdue.discard(connection.member)
        super().receive(connection, message)

    def remove(self, connection: Connection) -> None:
        self.overdue.discard(connection.member)
        super().remove(connection)

    def _connect(self, worker: VirtualWorker, member: int) -> Connection:
        return WatchedConnection(self, worker, member)

    def _tick(self) -> None:
        before = self.turns.turn if self.turns is not None else None
        super()._tick()
        if before is not None and (self.turns is None or self.turns.turn is not before):
            self.overdue |= before.computing
            self.lapses += 1


class SlowHost(Host):
    """Host with its own speed and its own delay of messages."""

    arbiter: WatchedArbiter | None

    def __init__(self, world: CheckedWorld, number: int, *, slowness: float, delay_s: float, lease_s: float) -> None:
        super().__init__(world, number, lambda: world.dice.uniform(0.1, 1.0) * delay_s, lease_s=lease_s)
        self.slowness = slowness  # how many times as long a layer takes
        self.delay_s = delay_s  # the longest delay of a message
        self.start_arbiter()

    def start_arbiter(self) -> None:
        self.arbiter = WatchedArbiter(self.world, self)


Script = Generator[float | Callable[[], bool], None, None]  # yields waits: seconds, or a condition


@dataclass(frozen=True, kw_only=True)
class JobTraits:
    """Traits of a job; times are those of the job alone on hosts with a slowness of 1."""

    name: str
    steps: int
    layers: int = 4
    compute_s: float  # of a step
    network_s: float
    optimizer_s: float = 0.0
    load_s: float = 0.0
    weight: float = 1.0
    is_urgent: bool = False
    is_gated: bool = False
    jitter: float = 0.0  # the fraction by which any of these varies
    delay_s: float = 0.0  # the longest delay of a message from one worker to another
    spread_s: float = 0.0  # its workers start within this time

    @property
    def layer_s(self) -> float:
        return self.compute_s / self.layers

    @property
    def device_s(self) -> float:
        """Device time of a step."""
        return self.compute_s + self.optimizer_s

    @property
    def step_s(self) -> float:
        """Length of a step when the job is alone."""
        return self.device_s + self.network_s + self.load_s


class Job:
    """Virtual job: its workers, and when each of its steps ended."""

    def __init__(self, world: CheckedWorld, traits: JobTraits, hosts: list[SlowHost]) -> None:
        self.world, self.traits = world, traits
        self.job_workers = JobWorkers(world, lambda: self.draw_s(traits.delay_s))
        self.workers = [Worker(self, rank, host, len(hosts)) for rank, host in enumerate(hosts)]
        self.ended_s: float | None = None
        self.steps_s: list[float] = []  # when its last worker had ended each step
        self.positions: dict[int, set[Ask]] = {}  # for each step, the requests of its workers that had a position
        self._ended: list[int] = [0] * len(self.workers)  # how many steps each worker has ended

    @property
    def is_done(self) -> bool:
        return all(worker.is_done for worker in self.workers)

    @property
    def hosts(self) -> set[int]:
        return {worker.host for worker in self.workers}

    def start(self) -> None:
        for worker in self.workers:
            self.world.later(worker, self.world.dice.random() * self.traits.spread_s, worker.start)

    def draw_s(self, mean_s: float) -> float:
        jitter = self.traits.jitter
        return mean_s * (1.0 + self.world.dice.uniform(-jitter, jitter)) if jitter else mean_s

    def end_step(self, rank: int) -> None:
        """End a worker's step.  All workers receive the results some time after the last one has ended it."""
        self._ended[rank] += 1
        step = self._ended[rank]
        if min(self._ended) < step:
            return
        self.steps_s.append(self.world.now_s)
        parts = self.traits.layers if self.traits.is_gated else 1
        for worker in self.workers:
            for part in range(1, parts + 1):
                delay_s = self.draw_s(self.traits.network_s * part / parts)
                self.world.later(worker, delay_s, worker.receive_results, step, part / parts)

    def note_positions(self, rank: int, outgoing: list[ToArbiter]) -> None:
        for message in outgoing:
            if isinstance(message, Ask) and message.virtual_s is not None:
                self.positions.setdefault(self._ended[rank] + 1, set()).add(message)

    def kill(self, rank: int, noticed_after_s: float) -> None:
        """Kill one worker; the others end when they notice."""
        self.workers[rank].die("is killed")
        for worker in self.workers:
            self.world.later(worker, noticed_after_s, worker.die, "gives up")


class Worker(VirtualWorker):
    """Worker that trains by a script."""

    home: SlowHost
    world: CheckedWorld
    connection: WatchedConnection | None

    def __init__(self, job: Job, rank: int, home: SlowHost, world_size: int) -> None:
        traits = job.traits
        hello = Hello(
            version=VERSION,
            job=traits.name,
            name=traits.name,
            rank=rank,
            world_size=world_size,
            pid=1000 + rank,
            device=DEVICE,
            weight=traits.weight,
            is_urgent=traits.is_urgent,
        )
        super().__init__(job.world, home, hello, job.job_workers)
        self.job = job
        self.most_delayed_s = 0.0  # longest wait for one turn
        self.computed_s = 0.0
        self._results: tuple[int, float] = (0, 0.0)  # the last step with results, and the fraction that has come
        self._script = self._train()

    # Events from outside

    def start(self) -> None:
        self.connect()
        self._continue()

    def receive_results(self, step: int, fraction: float) -> None:
        """Receive results of a step, up to this fraction of them."""
        self._results = max(self._results, (step, fraction))
        self.check_condition()

    def die(self, how: str) -> None:
        if not self.is_done and not self.is_dead:
            self.world.note(f"{self.name} {how}")
            self.is_dead = True
            self.close()

    # The script

    def _train(self) -> Script:
        traits = self.job.traits
        yield lambda: self.has_looked
        for step in range(traits.steps):
            yield self.job.draw_s(traits.load_s)
            yield from self._await_turn(self.take)
            for layer in range(traits.layers):
                if traits.is_gated and step:
                    yield from self._pause((step, (layer + 1) / traits.layers))
                yield from self._await_turn(self.make_way)
                yield self._compute(traits.layer_s)
            self.end_step()
            self.job.end_step(self.rank)
            if not traits.is_gated:
                yield from self._pause((step + 1, 1.0))
                yield from self._optimize()
        self._finish()

    def _await_turn(self, ask: Callable[[], None]) -> Script:
        """Call what may ask for the turn, and wait for the turn."""
        asked_s = self.world.now_s
        ask()
        yield self.has_turn
        self.most_delayed_s = max(self.most_delayed_s, self.world.now_s - asked_s)

    def _pause(self, until: tuple[int, float]) -> Script:
        """Wait for results unless they have come already."""
        if self._results < until:
            self.begin_pause()
            yield lambda: self._results >= until
            yield from self._await_turn(self.end_pause)

    def _optimize(self) -> Script:
        if self.job.traits.optimizer_s > 0:
            yield from self._await_turn(self.begin_update)
            yield self._compute(self.job.traits.optimizer_s)
            self.end_update()

    def _compute(self, mean_s: float) -> float:
        """Return how long the layers compute on this host."""
        seconds = self.job.draw_s(mean_s) * self.home.slowness
        self.computed_s += seconds
        return seconds

    def _finish(self) -> None:
        self.world.note(f"{self.name} is done")
        self.close()
        if self.job.is_done:
            self.job.ended_s = self.world.now_s

    # Inside

    def _continue(self) -> None:
        wait = next(self._script, None)
        if isinstance(wait, float):
            self.world.later(self, wait, self._continue)
        elif wait is not None:
            self.when(wait, self._continue)

    def _send(self, outgoing: list[ToArbiter]) -> None:
        self.job.note_positions(self.rank, outgoing)
        super()._send(outgoing)
