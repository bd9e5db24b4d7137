"""Launchers and workers between the hosts' rendezvous and the workers', in virtual time.

In: when each worker comes to the workers' meeting, what happens to whom.  Out: when each launcher ended its workers,
and the cause it named.  The deciding code is the real one: `HostWatch`, and `StopWatch` for local workers.
Connections form a star around the first launcher and keep the order of messages, as TCP does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from undertow.faults.turns_world import Process, World
from undertow.launch.host_watch import (
    BEAT_EVERY_S,
    HUB,
    EndWorkers,
    Goodbye,
    HostPlace,
    HostWatch,
    Instructions,
    Message,
)
from undertow.launch.supervisor import StopWatch

# A launcher on a loaded host ticks late.
LATEST_TICK = 1.3
NOTICE_S = 0.05  # until a launcher has seen that a worker ended
WIND_DOWN_S = 3.0


class Worker(Process):
    def __init__(self, rank: int, host: int, comes_s: float) -> None:
        super().__init__(f"rank {rank}", host)
        self.rank = rank
        self.comes_s = comes_s
        self.has_come = False


class Launcher(Process):
    """One launcher with its workers."""

    def __init__(self, world: World, host: int, place: HostPlace, watch: HostWatch) -> None:
        super().__init__(f"the launcher on host {place.name}", host)
        self.world = world
        self.place = place
        self.watch = watch
        self.workers: list[Worker] = []
        self.cause = ""  # why it ended its workers
        self.ended_s = float("inf")
        self.has_left = False
        self.stop_watch = StopWatch()

    def end(self, cause: str) -> None:
        if not self.cause:
            self.cause, self.ended_s = cause, self.world.now_s
            self.world.tell(f"{self.name} ends its workers: {cause}")
            for worker in self.workers:
                worker.is_dead = True


@dataclass
class Job:
    """All launchers of a job; `delays_s` are those of the links between the first host and each other one."""

    world: World
    launchers: list[Launcher] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)

    @property
    def workers(self) -> list[Worker]:
        return [worker for launcher in self.launchers for worker in launcher.workers]

    def start(self) -> None:
        for launcher in self.launchers:
            self._tick_later(launcher)
        for worker in self.workers:
            self.world.at(worker.comes_s, lambda worker=worker: self._come(worker), worker)  # type: ignore[misc]

    # What the launchers do

    def obey(self, launcher: Launcher, instructions: Instructions) -> None:
        for instruction in instructions:
            if isinstance(instruction, EndWorkers):
                launcher.end(instruction.cause)
                self._leave_later(launcher)
            else:
                for host in instruction.hosts:
                    self._send(launcher, self.launchers[host], instruction.message)

    def _tick_later(self, launcher: Launcher) -> None:
        delay_s = BEAT_EVERY_S * self.world.dice.uniform(1.0, LATEST_TICK)
        self.world.at(delay_s, lambda: self._tick(launcher), launcher)

    def _tick(self, launcher: Launcher) -> None:
        if launcher.has_left:
            return
        for worker in launcher.workers:
            launcher.stop_watch.observe(worker.rank, 1, state="T" if worker.is_stopped else "S")
            if launcher.stop_watch.is_stuck(worker.rank) and not worker.is_dead:
                self.obey(launcher, launcher.watch.note_stopped(worker.rank, 1))
        if not launcher.watch.has_met:  # the thread ends then
            self.obey(launcher, launcher.watch.tick(self.world.now_s))
        self._tick_later(launcher)

    def _send(self, sender: Launcher, receiver: Launcher, message: Message) -> None:
        def arrive() -> None:
            if not receiver.has_left:
                self.obey(receiver, receiver.watch.hear(sender.host, message, self.world.now_s))

        self.world.at(self._find_delay_s(sender, receiver), arrive, receiver)

    def _find_delay_s(self, sender: Launcher, receiver: Launcher) -> float:
        return self.delays_s[max(sender.host, receiver.host)]

    def find_peers(self, launcher: Launcher) -> list[Launcher]:
        return self.launchers[1:] if launcher.host == HUB else self.launchers[:1]

    def _leave_later(self, launcher: Launcher) -> None:
        def leave() -> None:
            launcher.has_left = True
            for peer in self.find_peers(launcher):
                self._send(launcher, peer, Goodbye())

        self.world.at(WIND_DOWN_S, leave, launcher)

    # What the workers do

    def _come(self, worker: Worker) -> None:
        worker.has_come = True
        self.world.tell(f"{worker.name} comes to the workers' meeting")
        self.try_to_meet()

    def try_to_meet(self) -> None:
        """Rank 0 is connected to all, and says so to the first launcher."""
        if all(worker.has_come and not worker.is_dead and not worker.is_stopped for worker in self.workers):
            self.world.tell("the workers have met")
            first = self.launchers[HUB]
            self.world.at(0.0, lambda: self.obey(first, first.watch.note_met()), first)

    # What goes wrong

    def kill_worker(self, worker: Worker) -> None:
        self.world.tell(f"{worker.name} is killed")
        worker.is_dead = True
        launcher = self.launchers[worker.host]

        def notice() -> None:
            self.obey(launcher, launcher.watch.note_failed(worker.rank, "was killed by SIGKILL"))
            launcher.end("a worker of its own")
            self._leave_later(launcher)

        self.world.at(NOTICE_S, notice, launcher)

    def kill_launcher(self, launcher: Launcher, *, closes: bool) -> None:
        """With `closes` its connections end; without, its host is gone and says nothing."""
        self.world.tell(f"{launcher.name} is killed" if closes else f"host {launcher.place.name} is gone")
        for process in (launcher, *launcher.workers):
            process.is_dead = True
        for peer in self.find_peers(launcher) if closes else []:
            self._close(launcher, peer)

    def _close(self, launcher: Launcher, peer: Launcher) -> None:
        def close() -> None:
            if not peer.has_left:
                self.obey(peer, peer.watch.note_closed(launcher.host))

        self.world.at(self._find_delay_s(launcher, peer), close, peer)

    def interrupt(self, launcher: Launcher) -> None:
        self.world.tell(f"{launcher.name} is interrupted")
        self.obey(launcher, launcher.watch.note_leaving("was interrupted by SIGINT"))
        launcher.end("its user")
        self._leave_later(launcher)

    def stop(self, process: Process, for_s: float) -> None:
        self.world.stop(process, for_s)
        self.world.at(for_s, self.try_to_meet)
