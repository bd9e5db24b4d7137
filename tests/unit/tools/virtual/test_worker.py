"""Virtual workers and arbiters: messages stay in order, short waits keep the turn, and no arbiter is needed."""

from __future__ import annotations

import pytest

from undertow.crossover.client import ANSWER_S, LOOK_EVERY_S
from undertow.crossover.messages import VERSION, Hello, Lift
from undertow.crossover.turn_state import TurnMode
from undertow.engine.client.waiting import KEEP_TURN_S
from undertow.errors import ConfigError
from undertow.tools.virtual.arbiter import Host
from undertow.tools.virtual.worker import JobWorkers, VirtualWorker
from undertow.tools.virtual.world import Channel, Process, World

DELAY_S = 0.001


class Scene:
    """One host with an arbiter, and jobs of one worker each."""

    def __init__(self) -> None:
        self.world = World()
        self.host = Host(self.world, 0, lambda: DELAY_S)
        self.host.start_arbiter()
        self.done: list[str] = []

    def add(self, job: str, **terms: float) -> VirtualWorker:
        hello = Hello(version=VERSION, job=job, name=job, rank=0, world_size=1, pid=1, device="gpu0", **terms)
        worker = VirtualWorker(self.world, self.host, hello, JobWorkers(self.world, lambda: DELAY_S))
        worker.connect()
        return worker

    def take(self, worker: VirtualWorker) -> None:
        worker.take()
        worker.when(worker.has_turn, lambda: self.done.append(worker.name))

    def pass_time(self, seconds: float) -> None:
        until_s = self.world.now_s + seconds
        while self.world.next_s <= until_s:
            self.world.step()
        self.world.now_s = until_s


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_one_job_computes_at_a_time(scene: Scene) -> None:
    one, other = scene.add("a"), scene.add("b")
    scene.pass_time(0.1)
    assert one.state.mode is other.state.mode is TurnMode.SHARED
    scene.take(one)
    scene.take(other)
    scene.pass_time(0.1)
    assert scene.done == ["a0"]
    one.give()
    scene.pass_time(0.1)
    assert scene.done == ["a0", "b0"]


def test_a_short_wait_for_the_network_does_not_cost_the_turn(scene: Scene) -> None:
    one, _ = scene.add("a"), scene.add("b")
    scene.pass_time(0.1)
    scene.take(one)
    scene.pass_time(0.1)
    for wait_s, keeps in ((0.9 * KEEP_TURN_S, True), (1.1 * KEEP_TURN_S, False)):
        one.begin_pause()
        scene.pass_time(wait_s)
        assert one.state.is_computing is keeps
        one.end_pause()
        assert one.has_turn() is keeps
        scene.pass_time(0.1)
        assert one.state.is_computing


def test_a_worker_disconnects_from_a_silent_arbiter_and_finds_the_next(scene: Scene) -> None:
    one, other = scene.add("a"), scene.add("b")
    scene.pass_time(0.1)
    scene.take(one)
    scene.pass_time(0.1)
    scene.host.stop_arbiter(1000.0)
    scene.take(other)
    scene.pass_time(0.9 * ANSWER_S)
    assert scene.done == ["a0"]
    scene.pass_time(ANSWER_S)
    assert scene.done == ["a0", "b0"]
    assert other.state.mode is TurnMode.NO_ARBITER
    scene.host.arbiter = None
    scene.host.start_arbiter()
    scene.pass_time(ANSWER_S + 2 * LOOK_EVERY_S)  # until it gives up the one that does not answer its Hello
    assert other.state.mode is TurnMode.ALONE


def test_workers_do_without_an_arbiter_that_is_killed(scene: Scene) -> None:
    worker = scene.add("a")
    scene.pass_time(0.1)
    scene.host.kill_arbiter(10.0)
    scene.pass_time(1.0)
    assert worker.state.mode is TurnMode.NO_ARBITER
    scene.pass_time(10.0 + LOOK_EVERY_S)
    assert worker.state.mode is TurnMode.ALONE


def test_a_job_that_is_refused_is_an_error(scene: Scene) -> None:
    scene.add("a", weight=0.0)
    with pytest.raises(ConfigError, match="a0 cannot share gpu0: a weight of 0"):
        scene.pass_time(0.1)


def test_a_lift_goes_to_the_first_worker() -> None:
    world = World()
    host, job_workers = Host(world, 0, lambda: 0.0), JobWorkers(world, lambda: 1.0)
    hellos = [
        Hello(version=VERSION, job="a", name="a", rank=rank, world_size=3, pid=1, device="gpu0") for rank in range(3)
    ]
    workers = [VirtualWorker(world, host, hello, job_workers) for hello in hellos]
    heard: list[tuple[float, int]] = []
    for worker in workers:
        worker.handle_relayed = lambda message, rank=worker.rank: heard.append((world.now_s, rank))  # type: ignore[misc]
    job_workers.relay(workers[2], Lift(1.0))
    job_workers.relay(workers[0], Lift(1.0))
    world.run()
    assert heard == [(0.0, 0), (1.0, 0)]


def test_a_channel_keeps_the_order_and_a_stopped_process_receives_later() -> None:
    world, process = World(), Process("one", 0)
    delays_s, heard = iter([3.0, 1.0]), list[tuple[float, str]]()
    channel = Channel(world, process, lambda: next(delays_s))
    for what in ("first", "second"):
        channel.carry(lambda what=what: heard.append((world.now_s, what)))  # type: ignore[misc]
    assert channel.in_flight == 2
    world.stop_process(process, 5.0)
    world.run()
    assert heard == [(5.0, "first"), (5.0, "second")]
    assert channel.in_flight == 0
