"""Virtual job that shares its devices, and hosts with what claims must know of arbiters and connections.

In: the job's traits, the hosts of its workers.  Out: messages to the arbiters, and when each step ended.
Its workers train in step, each with the real `TurnTaker`.
A step: load data, take the turn, compute layers, end the step; then wait for the network, which is done when all
workers have ended the step; then take a short turn for the optimizer.  Behind gates a layer waits for the results that
it reads.
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
    """Connection that knows whether its two ends have misunderstood each other."""

    arbiter: WatchedArbiter
    worker: Worker

    # Two jobs have come and gone while a message was on its way: the arbiter takes a word from before for a new one,
    # and the worker computes beside another job once.
    is_crossed = False
    _releases = 0  # messages of being alone on the way to the worker

    def say(self, message: ToArbiter) -> None:
        is_old = self._releases > 0 and isinstance(message, messages.Give)
        self._to_arbiter.carry(self._reach_arbiter, message, is_old)

    def answer(self, message: FromArbiter) -> None:
        self._releases += isinstance(message, messages.NowAlone)
        self._to_worker.carry(self._reach_worker, message)

    def _reach_arbiter(self, message: ToArbiter, is_old: bool) -> None:
        turns = self.arbiter.turns
        self.is_crossed |= is_old and turns is not None and not turns.is_alone
        self.arbiter.hear(self, message)

    def _reach_worker(self, message: FromArbiter) -> None:
        self._releases -= isinstance(message, messages.NowAlone)
        self.worker.hear(self, message)


class WatchedArbiter(Arbiter):
    """Arbiter that knows who has lost its turn."""

    def __init__(self, world: World, home: Host) -> None:
        super().__init__(world, home)
        self.overdue: set[int] = set()  # members that lost their turn and have not given back since
        self.lapses = 0  # turns that were longer than the lease

    @property
    def turns(self) -> Turns | None:
        return self.state.devices.get(DEVICE)

    def hear(self, connection: Connection, message: ToArbiter) -> None:
        if isinstance(message, messages.Give):
            self.overdue.discard(connection.member)
        super().hear(connection, message)

    def dismiss(self, connection: Connection) -> None:
        self.overdue.discard(connection.member)
        super().dismiss(connection)

    def _connect(self, worker: VirtualWorker, member: int) -> Connection:
        return WatchedConnection(self, worker, member)

    def _tick(self) -> None:
        before = self.turns.turn if self.turns is not None else None
        super()._tick()
        if before is not None and (self.turns is None or self.turns.turn is not before):
            self.overdue |= before.computing
            self.lapses += 1


class SlowHost(Host):
    """Host whose layers and messages take their time."""

    arbiter: WatchedArbiter | None

    def __init__(self, world: CheckedWorld, number: int, *, slowness: float, delay_s: float, lease_s: float) -> None:
        super().__init__(world, number, lambda: world.dice.uniform(0.1, 1.0) * delay_s, lease_s=lease_s)
        self.slowness = slowness  # how many times as long a layer takes
        self.delay_s = delay_s  # the most that a message takes
        self.start_arbiter()

    def start_arbiter(self) -> None:
        self.arbiter = WatchedArbiter(self.world, self)


Script = Generator[float | Callable[[], bool], None, None]  # for how long, or for what, it waits


@dataclass(frozen=True, kw_only=True)
class JobTraits:
    """Traits of a job, as it is alone on hosts of the usual speed."""

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
    jitter: float = 0.0  # by which fraction any of these varies
    delay_s: float = 0.0  # the most that a message from one worker to another takes
    spread_s: float = 0.0  # how far apart its workers start

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
    def __init__(self, world: CheckedWorld, traits: JobTraits, hosts: list[SlowHost]) -> None:
        self.world, self.traits = world, traits
        self.job_workers = JobWorkers(world, lambda: self.draw_s(traits.delay_s))
        self.workers = [Worker(self, rank, host, len(hosts)) for rank, host in enumerate(hosts)]
        self.ended_s: float | None = None
        self.steps_s: list[float] = []  # when its last worker had ended each step
        self.positions: dict[int, set[Ask]] = {}  # with which its workers have asked, by step
        self._ended: list[int] = [0] * len(self.workers)  # steps of each worker

    @property
    def is_done(self) -> bool:
        return all(worker.is_done for worker in self.workers)

    @property
    def hosts(self) -> set[int]:
        return {worker.host for worker in self.workers}

    def start(self) -> None:
        for worker in self.workers:
            self.world.later(worker, self.world.dice.random() * self.traits.spread_s, worker.start)

    def draw_s(self, usual_s: float) -> float:
        jitter = self.traits.jitter
        return usual_s * (1.0 + self.world.dice.uniform(-jitter, jitter)) if jitter else usual_s

    def end_step(self, rank: int) -> None:
        """End a worker's step; a while after the last worker, all get the results."""
        self._ended[rank] += 1
        step = self._ended[rank]
        if min(self._ended) < step:
            return
        self.steps_s.append(self.world.now_s)
        parts = self.traits.layers if self.traits.is_gated else 1
        for worker in self.workers:
            for part in range(1, parts + 1):
                delay_s = self.draw_s(self.traits.network_s * part / parts)
                self.world.later(worker, delay_s, worker.receive, step, part / parts)

    def note_positions(self, rank: int, said: list[ToArbiter]) -> None:
        for ask in said:
            if isinstance(ask, Ask) and ask.virtual_s is not None:
                self.positions.setdefault(self._ended[rank] + 1, set()).add(ask)

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
        self._came: tuple[int, float] = (0, 0.0)  # the last step of which results have come, and how many of them
        self._script = self._train()

    # What happens to it

    def start(self) -> None:
        self.meet()
        self._go_on()

    def receive(self, step: int, part: float) -> None:
        """Take results of a step, up to this fraction of them."""
        self._came = max(self._came, (step, part))
        self.wake()

    def die(self, how: str) -> None:
        if not self.is_done and not self.is_dead:
            self.world.note(f"{self.name} {how}")
            self.is_dead = True
            self.close()

    # What it does

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
        """Do what may ask for the turn, and wait until it is there."""
        asked_s = self.world.now_s
        ask()
        yield self.has_turn
        self.most_delayed_s = max(self.most_delayed_s, self.world.now_s - asked_s)

    def _pause(self, until: tuple[int, float]) -> Script:
        """Wait for results, which may be here already."""
        if self._came < until:
            self.begin_pause()
            yield lambda: self._came >= until
            yield from self._await_turn(self.end_pause)

    def _optimize(self) -> Script:
        if self.job.traits.optimizer_s > 0:
            yield from self._await_turn(self.begin_update)
            yield self._compute(self.job.traits.optimizer_s)
            self.end_update()

    def _compute(self, usual_s: float) -> float:
        seconds = self.job.draw_s(usual_s) * self.home.slowness
        self.computed_s += seconds
        return seconds

    def _finish(self) -> None:
        self.world.note(f"{self.name} is done")
        self.close()
        if self.job.is_done:
            self.job.ended_s = self.world.now_s

    # Inside

    def _go_on(self) -> None:
        wait = next(self._script, None)
        if isinstance(wait, float):
            self.world.later(self, wait, self._go_on)
        elif wait is not None:
            self.when(wait, self._go_on)

    def _send(self, said: list[ToArbiter]) -> None:
        self.job.note_positions(self.rank, said)
        super()._send(said)
