"""A virtual job that shares its devices: workers that train in step, each with the real `Part`.

In: what the job is like, where its workers are.  Out: what they say to the arbiters, and when each step ended.
A step: load data, take the turn, layers, end of the step; then the network, which is done when all workers
have ended the step; then the optimizer's little turn.  Behind gates a layer waits for the results that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from undertow.crossover import messages
from undertow.crossover.client import ANSWER_S, ASK_EVERY_S, LOOK_EVERY_S
from undertow.crossover.messages import Ask, FromArbiter, Hello, ToArbiter
from undertow.crossover.part import Part
from undertow.crossover.turns import Place
from undertow.faults.turns_host import DEVICE, Connection, Host
from undertow.faults.turns_world import Process, World

Script = Generator[float | Callable[[], bool], None, None]  # for how long, or for what, it waits


@dataclass(frozen=True, kw_only=True)
class Nature:
    """What a job is like, alone on hosts of the usual speed."""

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
    jitter: float = 0.0  # by which part any of these varies
    delay_s: float = 0.0  # of a word from one worker to another, at most
    spread_s: float = 0.0  # how far apart its workers start

    @property
    def layer_s(self) -> float:
        return self.compute_s / self.layers

    @property
    def device_s(self) -> float:
        """What a step takes of a device."""
        return self.compute_s + self.optimizer_s

    @property
    def step_s(self) -> float:
        """A step when nobody else is there."""
        return self.device_s + self.network_s + self.load_s


class Job:
    def __init__(self, world: World, nature: Nature, hosts: list[Host]) -> None:
        self.world, self.nature = world, nature
        self.workers = [Worker(self, rank, host) for rank, host in enumerate(hosts)]
        self.ended_s: float | None = None
        self.is_broken = False  # a worker was killed
        self.steps_s: list[float] = []  # when its last worker had ended each step
        self.places: dict[int, set[Ask]] = {}  # with which its workers have asked, for each step
        self._ended: list[int] = [0] * len(self.workers)  # steps of each worker
        self._told_s: list[float] = [0.0] * len(self.workers)  # when the last word to or of each arrives

    @property
    def is_done(self) -> bool:
        return all(worker.is_done for worker in self.workers)

    @property
    def hosts(self) -> set[int]:
        return {worker.host for worker in self.workers}

    def start(self) -> None:
        for worker in self.workers:
            self.world.at(self.world.dice.random() * self.nature.spread_s, worker.start, worker)

    def draw_s(self, usual_s: float) -> float:
        jitter = self.nature.jitter
        return usual_s * (1.0 + self.world.dice.uniform(-jitter, jitter)) if jitter else usual_s

    def end_step(self, rank: int) -> None:
        """The network is done with a step a while after its last worker."""
        self._ended[rank] += 1
        step = self._ended[rank]
        if min(self._ended) < step:
            return
        self.steps_s.append(self.world.now_s)
        parts = self.nature.layers if self.nature.is_gated else 1
        for worker in self.workers:
            for part in range(1, parts + 1):
                delay_s = self.draw_s(self.nature.network_s * part / parts)
                self.world.at(delay_s, lambda w=worker, p=part: w.receive(step, p / parts), worker)  # type: ignore[misc]

    def note_place(self, rank: int, said: list[ToArbiter]) -> None:
        for ask in said:
            if isinstance(ask, Ask) and ask.virtual_s is not None:
                self.places.setdefault(self._ended[rank] + 1, set()).add(ask)

    def tell(self, step: int, place: Place) -> None:
        """From the first worker to the others."""
        for worker in self.workers[1:]:
            self._carry(worker.rank, lambda w=worker: w.part.standings.hear(step, place), worker)  # type: ignore[misc]

    def lift(self, rank: int, to_s: float) -> None:
        """From any worker to the first."""
        first = self.workers[0]
        if rank:
            self._carry(rank, lambda: first.say([messages.Lift(to_s)]), first)
        else:
            first.say([messages.Lift(to_s)])

    def kill(self, rank: int, noticed_after_s: float) -> None:
        """One worker dies; the others end when they notice."""
        self.is_broken = True
        self.workers[rank].die("is killed")
        for worker in self.workers:
            self.world.at(noticed_after_s, lambda w=worker: w.die("gives up"), worker)  # type: ignore[misc]

    def _carry(self, rank: int, call: Callable[[], None], to: Worker) -> None:
        now_s = self.world.now_s
        self._told_s[rank] = max(self._told_s[rank], now_s + self.draw_s(self.nature.delay_s))
        self.world.at_time(self._told_s[rank], call, to)


class Worker(Process):
    def __init__(self, job: Job, rank: int, home: Host) -> None:
        super().__init__(f"{job.nature.name}{rank}", home.number)
        self.job, self.rank, self.home = job, rank, home
        self.part = Part()
        self.connection: Connection | None = None
        self.is_done = False
        self.most_delayed_s = 0.0  # that it waited for one turn
        self.computed_s = 0.0
        self._world = job.world
        self._has_come = False  # it has met the arbiter, or there is none
        self._is_welcome = False
        self._heard_s = 0.0
        self._asked_s = 0.0
        self._came: tuple[int, float] = (0, 0.0)  # the last step of which results have come, and how many of them
        self._waits_for: Callable[[], bool] | None = None
        self._script = self._train()

    # What happens to it

    def start(self) -> None:
        self._meet()
        self._go_on()

    def hear(self, connection: Connection, message: FromArbiter) -> None:
        if connection is not self.connection:
            return
        self._heard_s = self._world.now_s
        if isinstance(message, messages.Refusal):
            self._world.fail(f"{self.name} is refused: {message.reason}")
        if isinstance(message, messages.Welcome):
            self._has_come = self._is_welcome = True
            self.part.meet()
        self.say(self.part.hear(message, self._world.now_s))
        match message:
            case messages.Grant(lift_s) if lift_s > 0:
                self.job.lift(self.rank, lift_s)
            case messages.Standing(step, virtual_s, cost_s):
                self.job.tell(step, Place(virtual_s, cost_s))
        self._wake()

    def lose(self, connection: Connection) -> None:
        """The arbiter is gone."""
        if connection is self.connection:
            self._world.tell(f"{self.name} has lost its arbiter")
            connection.close()
            self.connection = None
            self._has_come = True
            self.part.lose(self._world.now_s)
            self._world.at(LOOK_EVERY_S, self._meet, self)
            self._wake()

    def receive(self, step: int, part: float) -> None:
        """Results of a step have come."""
        self._came = max(self._came, (step, part))
        self._wake()

    def die(self, how: str) -> None:
        if not self.is_done and not self.is_dead:
            self._world.tell(f"{self.name} {how}")
            self.is_dead = self.is_done = True
            self.part.lose(self._world.now_s)
            self._leave()

    # What it does

    def say(self, said: list[ToArbiter]) -> None:
        if self.connection is not None and self._is_welcome:
            for message in said:
                self.connection.say(message)

    def _train(self) -> Script:
        nature = self.job.nature
        yield lambda: self._has_come
        for step in range(nature.steps):
            yield self.job.draw_s(nature.load_s)
            yield from self._take()
            for layer in range(nature.layers):
                if nature.is_gated and step:
                    yield from self._pause((step, (layer + 1) / nature.layers))
                yield from self._make_way()
                yield self._compute(nature.layer_s)
            self._end_step()
            if not nature.is_gated:
                yield from self._pause((step + 1, 1.0))
                yield from self._optimize()
        self._finish()

    def _take(self) -> Script:
        """Until it may compute."""
        said = self.part.take(self._world.now_s)
        self.job.note_place(self.rank, said)
        self.say(said)
        if self.part.is_computing:
            return
        self._asked_s = asked_s = self._world.now_s
        self._look_for_a_sign(asked_s)
        yield lambda: self.part.is_computing
        self.most_delayed_s = max(self.most_delayed_s, self._world.now_s - asked_s)

    def _give(self) -> None:
        if self.part.is_computing:
            self.say(self.part.give(self._world.now_s))

    def _make_way(self) -> Script:
        if self.part.is_recalled:
            self._give()
            yield from self._take()

    def _pause(self, until: tuple[int, float]) -> Script:
        """For results that may be here already."""
        if self._came >= until:
            return
        was_computing, began_s = self.part.is_computing, self._world.now_s
        self._give()
        yield lambda: self._came >= until
        self.part.note_network(self._world.now_s - began_s)
        if was_computing:
            yield from self._take()

    def _optimize(self) -> Script:
        if self.job.nature.optimizer_s > 0:
            yield from self._take()
            yield self._compute(self.job.nature.optimizer_s)
            self._give()

    def _compute(self, usual_s: float) -> float:
        seconds = self.job.draw_s(usual_s) * self.home.slowness
        self.computed_s += seconds
        return seconds

    def _end_step(self) -> None:
        self.say(self.part.end_step(self._world.now_s))
        self.job.end_step(self.rank)

    def _finish(self) -> None:
        self._world.tell(f"{self.name} is done")
        self.is_done = True
        self.part.lose(self._world.now_s)
        self.part.give(self._world.now_s)
        self._leave()
        if self.job.is_done:
            self.job.ended_s = self._world.now_s

    # Inside

    def _go_on(self) -> None:
        for wait in self._script:
            if isinstance(wait, float):
                self._world.at(wait, self._go_on, self)
                return
            if not wait():
                self._waits_for = wait
                return

    def _wake(self) -> None:
        if self._waits_for is not None and self._waits_for():
            self._waits_for = None
            self._go_on()

    def _meet(self) -> None:
        """Introduce itself; without an arbiter, or an answer of it, try again later."""
        if self.is_done:
            return
        if self.home.arbiter is None:
            self._has_come = True
            self._world.at(LOOK_EVERY_S, self._meet, self)
            return
        connection = self.connection = self.home.arbiter.admit(self)
        self._is_welcome = False
        connection.say(self._make_hello())
        self._world.at(ANSWER_S, lambda: None if self._is_welcome else self.lose(connection), self)

    def _leave(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _look_for_a_sign(self, asked_s: float) -> None:
        """Every few seconds of waiting, as long as there is an arbiter: does it live?"""

        def look() -> None:
            if self.connection is None or self._asked_s != asked_s or not self.part.is_waiting:
                return
            if self._world.now_s - max(asked_s, self._heard_s) > ANSWER_S:
                self.lose(self.connection)
            else:
                self.say([messages.Query()])
                self._look_for_a_sign(asked_s)

        self._world.at(ASK_EVERY_S, look, self)

    def _make_hello(self) -> Hello:
        nature = self.job.nature
        return Hello(
            version=messages.VERSION,
            job=nature.name,
            name=nature.name,
            rank=self.rank,
            world_size=len(self.job.workers),
            pid=1000 + self.rank,
            device=DEVICE,
            weight=nature.weight,
            is_urgent=nature.is_urgent,
        )
