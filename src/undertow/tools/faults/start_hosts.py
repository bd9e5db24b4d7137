"""Virtual launchers and workers, from the hosts' rendezvous to the workers' rendezvous.

In: when each worker comes to the workers' rendezvous, if it does; faults.
Out: when each launcher ended its workers, and the cause that it named.
The decisions are those of the real `HostWatch` and, for local workers, of the real `StoppedWorkers`.
Connections form a star around the first launcher and keep messages in order, as TCP does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from undertow.launch.host_watch import (
    BEAT_EVERY_S,
    HUB,
    SILENCE_S,
    EndWorkers,
    Goodbye,
    HostRanks,
    HostWatch,
    Instructions,
    Lost,
    Message,
    SendMessage,
    StartWorkers,
    describe_cut,
    describe_silence,
)
from undertow.launch.supervisor import StoppedWorkers
from undertow.runtime.launcher_notes import Mark
from undertow.tools.faults.world import CheckedWorld
from undertow.tools.virtual.world import Process

# A launcher on a loaded host ticks late, by up to this factor.
LATEST_TICK = 1.3
NOTICE_S = 0.05  # until a launcher has noticed that a worker ended
WIND_DOWN_S = 3.0
CONNECT_S = 2.0  # from the workers' rendezvous until the slowest of them is connected to all others
DIAL_S = 0.1  # a launcher connects to the first one within this time after the hosts' rendezvous


class Worker(Process):
    """Worker that comes to the workers' rendezvous, or trains without the others."""

    def __init__(self, rank: int, host: int, comes_s: float) -> None:
        super().__init__(f"rank {rank}", host)
        self.rank = rank
        self.comes_s = comes_s  # after its start; inf: it trains without the others
        self.came_s = float("inf")
        self.mark = Mark.NONE


class Launcher(Process):
    """Launcher of one host, with the real `HostWatch`."""

    def __init__(self, world: CheckedWorld, host: int, place: HostRanks, watch: HostWatch) -> None:
        super().__init__(f"the launcher on host {place.name}", host)
        self.world = world
        self.place = place
        self.watch = watch
        self.workers: list[Worker] = []
        self.cause = ""  # why it ended its workers
        self.ended_s = float("inf")
        self.is_connected = host == HUB
        self.has_started = False
        self.has_left = False
        self.closes = True  # its connections end when it dies
        self.stopped = StoppedWorkers()

    @property
    def awaits_s(self) -> float:
        """Time at which the first of its workers began to wait for others."""
        return min(worker.came_s for worker in self.workers)

    def end(self, cause: str) -> None:
        if not self.cause:
            self.cause, self.ended_s = cause, self.world.now_s
            self.world.note(f"{self.name} ends its workers: {cause}")
            for worker in self.workers:
                worker.is_dead = True


@dataclass
class Job:
    """Launchers of a job; `delays_s` are the delays of the links between the first host and each other one."""

    world: CheckedWorld
    launchers: list[Launcher] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    is_answered: bool = False  # the workers' rendezvous

    @property
    def workers(self) -> list[Worker]:
        return [worker for launcher in self.launchers for worker in launcher.workers]

    def start(self) -> None:
        self._tick_later(self.launchers[HUB])
        for launcher in self.launchers[1:]:
            dial_s = self.world.dice.uniform(0.0, DIAL_S)
            self.world.later(launcher, dial_s, self._dial, launcher)

    # Launchers, before the start of the workers

    def _dial(self, launcher: Launcher) -> None:
        hub = self.launchers[HUB]

        def arrive() -> None:
            if hub.has_left or (hub.is_dead and hub.closes):
                self._give_up_later(launcher, describe_cut(hub.place, HUB), self.delays_s[launcher.host])
            self.world.later(hub, 0.0, self._shake_hands, launcher)

        if not launcher.cause:  # otherwise it was interrupted
            self._give_up_later(launcher, describe_silence(hub.place, HUB, SILENCE_S), SILENCE_S)
            self.world.after(self.delays_s[launcher.host], arrive)

    def _give_up_later(self, launcher: Launcher, cause: str, delay_s: float) -> None:
        def give_up() -> None:
            if not launcher.is_connected:
                launcher.end(cause)
                launcher.has_left = True

        self.world.later(launcher, delay_s, give_up)

    def _shake_hands(self, launcher: Launcher) -> None:
        hub = self.launchers[HUB]
        if launcher.is_dead or launcher.cause:
            return
        launcher.is_connected = True
        self._tick_later(launcher)
        if hub.watch.cause:
            self._send(hub, launcher, Lost(hub.watch.cause))
        self.carry_out(hub, hub.watch.note_arrived(launcher.host, self.world.now_s))

    def _start_workers(self, launcher: Launcher) -> None:
        if launcher.cause:
            return
        launcher.has_started = True
        for worker in launcher.workers:
            if worker.comes_s < float("inf"):
                self.world.later(worker, worker.comes_s, self._come, worker)

    # Launchers, until the workers have met

    def carry_out(self, launcher: Launcher, instructions: Instructions) -> None:
        for instruction in instructions:
            match instruction:
                case EndWorkers(cause):
                    launcher.end(cause)
                    self.leave_later(launcher)
                case StartWorkers():
                    self._start_workers(launcher)
                case SendMessage(hosts, message):
                    for host in hosts:
                        self._send(launcher, self.launchers[host], message)

    def _tick_later(self, launcher: Launcher) -> None:
        delay_s = BEAT_EVERY_S * self.world.dice.uniform(1.0, LATEST_TICK)
        self.world.later(launcher, delay_s, self._tick, launcher)

    def _tick(self, launcher: Launcher) -> None:
        if launcher.has_left:
            return
        for worker in launcher.workers if launcher.has_started else []:
            launcher.stopped.observe(worker.rank, 1, state="T" if worker.is_stopped else "S")
            if launcher.stopped.is_stuck(worker.rank) and not worker.is_dead:
                self.carry_out(launcher, launcher.watch.note_stopped(worker.rank, 1))
        if not launcher.watch.has_met:  # after that, the real launcher's thread has ended
            self.carry_out(
                launcher, launcher.watch.note_marks({worker.rank: worker.mark for worker in launcher.workers})
            )
            self.carry_out(launcher, launcher.watch.tick(self.world.now_s))
        self._tick_later(launcher)

    def _send(self, sender: Launcher, receiver: Launcher, message: Message) -> None:
        def arrive() -> None:
            if not receiver.has_left:
                self.carry_out(receiver, receiver.watch.handle_message(sender.host, message, self.world.now_s))

        if sender.is_connected and receiver.is_connected:
            self.world.later(receiver, self._find_delay_s(sender, receiver), arrive)

    def _find_delay_s(self, sender: Launcher, receiver: Launcher) -> float:
        return self.delays_s[max(sender.host, receiver.host)]

    def find_peers(self, launcher: Launcher) -> list[Launcher]:
        return self.launchers[1:] if launcher.host == HUB else self.launchers[:1]

    def leave_later(self, launcher: Launcher, delay_s: float = WIND_DOWN_S) -> None:
        def leave() -> None:
            launcher.has_left = True
            for peer in self.find_peers(launcher):
                self._send(launcher, peer, Goodbye())

        self.world.later(launcher, delay_s, leave)

    # Workers

    def _come(self, worker: Worker) -> None:
        worker.came_s, worker.mark = self.world.now_s, Mark.WAITS_FOR_ALL
        self.world.note(f"{worker.name} comes to the workers' rendezvous")
        self.try_to_meet()

    def try_to_meet(self) -> None:
        """Let the first launcher answer if all workers have come; then they connect to each other."""
        first = self.launchers[HUB]
        are_there = all(worker.mark and not worker.is_dead and not worker.is_stopped for worker in self.workers)
        if are_there and not first.is_stopped and not first.is_dead and not self.is_answered:
            self.is_answered = True
            for worker in self.workers:
                connect_s = self.world.dice.uniform(0.0, CONNECT_S)
                self.world.later(worker, connect_s, self._meet, worker)

    def _meet(self, worker: Worker) -> None:
        """Connect to all others, unless one is gone before it has; rank 0 reports to the first launcher."""
        unconnected = [each for each in self.workers if each.mark is not Mark.MET]
        if any(each.is_dead or each.is_stopped for each in unconnected):
            self.world.later(worker, CONNECT_S, self._meet, worker)
            return
        worker.mark = Mark.MET
        self.world.note(f"{worker.name} has met the others")
        first = self.launchers[HUB]
        if worker.rank == 0:
            self.world.later(first, 0.0, lambda: self.carry_out(first, first.watch.note_met()))

    # Faults

    def _lose_worker(self, worker: Worker, how: str, notice: Callable[[Launcher], None]) -> None:
        """End a worker's process; its launcher notices after a while."""
        if not worker.is_dead:
            self.world.note(f"{worker.name} {how}")
            worker.is_dead = True
            launcher = self.launchers[worker.host]
            self.world.later(launcher, NOTICE_S, notice, launcher)

    def kill_worker(self, worker: Worker) -> None:
        def notice(launcher: Launcher) -> None:
            self.carry_out(launcher, launcher.watch.note_failed(worker.rank, "was killed by SIGKILL"))
            launcher.end("a worker of its own")
            self.leave_later(launcher)

        self._lose_worker(worker, "is killed", notice)

    def end_worker(self, worker: Worker) -> None:
        """End a worker's script in order."""

        def notice(launcher: Launcher) -> None:
            if worker.mark is not Mark.MET:
                worker.mark = Mark.NONE
                self.carry_out(launcher, launcher.watch.note_left(worker.rank))
            if all(worker.is_dead for worker in launcher.workers):
                self.leave_later(launcher, 0.0)

        self._lose_worker(worker, "ends with exit code 0", notice)

    def kill_launcher(self, launcher: Launcher, *, closes: bool) -> None:
        """Kill a launcher.  With `closes` its connections close; without, its host is gone and sends nothing."""
        self.world.note(f"{launcher.name} is killed" if closes else f"host {launcher.place.name} is gone")
        launcher.closes = closes
        for process in (launcher, *launcher.workers):
            process.is_dead = True
        for peer in self.find_peers(launcher) if closes else []:
            self._close(launcher, peer)

    def _close(self, launcher: Launcher, peer: Launcher) -> None:
        def close() -> None:
            if not peer.has_left:
                self.carry_out(peer, peer.watch.note_closed(launcher.host))

        if launcher.is_connected and peer.is_connected:
            self.world.later(peer, self._find_delay_s(launcher, peer), close)

    def interrupt(self, launcher: Launcher) -> None:
        self.world.note(f"{launcher.name} is interrupted")
        self.carry_out(launcher, launcher.watch.note_leaving("was interrupted by SIGINT"))
        launcher.end("its user")
        self.leave_later(launcher)

    def stop(self, process: Process, for_s: float) -> None:
        self.world.stop_process(process, for_s)
        self.world.after(for_s, self.try_to_meet)
