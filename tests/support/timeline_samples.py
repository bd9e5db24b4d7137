"""Traces to report on: a cluster that trains, small and consistent, in the format of docs/trace.md.

Contributions leave when their layer's backward has ended, shards answer when the last one is there, and whoever needs a
result waits for it: whatever the figures, cause comes before effect.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from undertow.plan.cluster import Cluster
from undertow.plan.planner import make_plan
from undertow.plan.profile import LayerProfile, Profile, TensorProfile

Event = dict[str, Any]
LATENCY_US = 50.0


@dataclass(kw_only=True)
class Job:
    """What is trained, where; times in microseconds."""

    ranks: int = 3
    steps: int = 8
    layers: int = 4
    forward_us: float = 1000.0
    backward_us: float = 2000.0
    size_bytes: int = 400_000
    bytes_per_us: float = 500.0
    has_gates: bool = True
    slowness: Mapping[int, float] = field(default_factory=dict)  # of some ranks
    jitter: float = 0.0
    seed: int = 0
    source: str = "worker"
    started: str = "feed0123"
    script: str = "train.py"
    has_plan: bool = False
    has_link: bool = True

    def tensor(self, layer: int) -> str:
        return f"layer{layer}.weight"


def make_trace(job: Job) -> dict[int, list[Event]]:
    """Events of every rank."""
    return _Training(job).run()


def write_trace(folder: Path, traces: Mapping[int, Sequence[Event]]) -> Path:
    """As undertow writes them: one event per line."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, events in traces.items():
        (folder / f"rank-{rank}.json").write_text(to_lines(events))
    return folder


def to_lines(events: Iterable[Event]) -> str:
    return "[\n" + ",\n".join(json.dumps(event, separators=(",", ":")) for event in events) + "\n]\n"


def spans(events: Iterable[Event], cat: str) -> list[Event]:
    return [event for event in events if event.get("cat") == cat]


class _Training:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._random = random.Random(job.seed)
        self._events: dict[int, list[Event]] = {rank: [] for rank in range(job.ranks)}
        self._now = dict.fromkeys(range(job.ranks), 1_000_000.0)
        self._free = dict.fromkeys(range(job.ranks), 0.0)  # of the wire out
        self._there: dict[tuple[int, int], float] = {}  # when rank has the result of layer
        self._number = 0

    def run(self) -> dict[int, list[Event]]:
        self._open()
        for _ in range(self._job.steps):
            self._number += 1
            begins = dict(self._now)
            hooks = {(rank, layer): time for rank in self._events for layer, time in self._compute(rank)}
            self._exchange(hooks)
            for rank in self._events:
                self._end_step(rank, begins[rank])
        for rank in self._events:
            self._say(rank, "undertow.end", reason="the job ended")
        return self._events

    def _open(self) -> None:
        job = self._job
        for rank in self._events:
            self._say(
                rank,
                "undertow",
                format=1,
                rank=rank,
                world_size=job.ranks,
                host=f"host{rank}",
                version="0.1.0",
                source=job.source,
                script=job.script,
                started=job.started,
            )
            keys = {str(layer): [job.tensor(layer)] for layer in range(job.layers)}
            self._say(rank, "undertow.table", table="parameters", op="mean", tensors=keys)
            self._say(rank, "undertow.clock", offset_s=0.0, round_trip_s=0.00002)
            if job.has_link:
                self._say(rank, "undertow.link", bytes_per_s=job.bytes_per_us * 1e6)
            if job.has_plan:
                self._say(rank, "undertow.plan", **make_planned(job))

    # The training thread

    def _compute(self, rank: int) -> list[tuple[int, float]]:
        job = self._job
        for layer in range(job.layers):
            begin = self._now[rank]
            if job.has_gates and self._number > 1:
                self._wait(rank, layer)
                self._spend(rank, "apply", f"apply {job.tensor(layer)}", 30, tensors=[job.tensor(layer)])
            self._now[rank] += self._take(rank, job.forward_us)
            self._span(rank, "forward", f"layer{layer}", begin, self._now[rank])
        self._now[rank] += self._take(rank, 100)  # the loss: nobody records it
        hooks = []
        for layer in reversed(range(job.layers)):
            self._spend(rank, "backward", f"layer{layer}", job.backward_us)
            self._spend(rank, "hook", job.tensor(layer), 20, tensor=job.tensor(layer))
            hooks.append((layer, self._now[rank]))
        return hooks

    def _end_step(self, rank: int, begin: float) -> None:
        if not self._job.has_gates:
            for layer in reversed(range(self._job.layers)):
                self._wait(rank, layer)
            self._spend(rank, "optimizer", "SGD.step", 200)
        self._now[rank] += self._take(rank, 50)
        self._span(rank, "step", f"step {self._number}", begin, self._now[rank])

    def _wait(self, rank: int, layer: int) -> None:
        there = self._there[rank, layer]
        if there > self._now[rank]:
            reason = "a gate" if self._job.has_gates else "the end of backward"
            begin, self._now[rank] = self._now[rank], there + 5
            name = self._job.tensor(layer)
            self._span(rank, "wait", f"wait for {name}", begin, self._now[rank], reason=reason, tensor=name)

    def _take(self, rank: int, time_us: float) -> float:
        noise = 1 + self._job.jitter * self._random.random()
        return time_us * self._job.slowness.get(rank, 1.0) * noise

    def _spend(self, rank: int, cat: str, name: str, time_us: float, **args: Any) -> None:
        begin = self._now[rank]
        self._now[rank] += self._take(rank, time_us)
        self._span(rank, cat, name, begin, self._now[rank], **args)

    # Wires and shards

    def _exchange(self, hooks: Mapping[tuple[int, int], float]) -> None:
        job = self._job
        inbox: dict[int, list[float]] = {layer: [] for layer in range(job.layers)}
        for (rank, layer), queued in sorted(hooks.items(), key=lambda item: item[1]):
            shard = layer % job.ranks
            arrived = queued if shard == rank else self._send("push", rank, shard, layer, queued)
            inbox[layer].append(arrived)
        for layer in sorted(inbox, key=lambda layer: max(inbox[layer])):
            shard, begin = layer % job.ranks, max(inbox[layer]) + 2
            end = begin + 40
            self._span(shard, "shard", job.tensor(layer), begin, end, **self._name(layer))
            for rank in self._events:
                there = end if rank == shard else self._send("result", shard, rank, layer, end)
                self._there[rank, layer] = there

    def _send(self, kind: str, sender: int, receiver: int, layer: int, queued: float) -> float:
        """When its last byte is there."""
        job = self._job
        sent = max(queued, self._free[sender])
        through = self._free[sender] = sent + job.size_bytes / job.bytes_per_us
        args = {"kind": kind, **self._name(layer), "bytes": job.size_bytes}
        times = {"sent": round(sent, 3), "queued": round(queued, 3), "priority": layer}
        self._span(sender, "wire-out", job.tensor(layer), sent, through, to=receiver, **args, **times)
        begin, end = sent + LATENCY_US, through + LATENCY_US
        self._span(receiver, "wire-in", job.tensor(layer), begin, end, **{"from": sender}, **args)
        return end

    def _name(self, layer: int) -> dict[str, Any]:
        return {"key": layer, "round": self._number, "tensors": [self._job.tensor(layer)]}

    # Events

    def _span(self, rank: int, cat: str, name: str, begin: float, end: float, **args: Any) -> None:
        ts = round(begin, 3)
        dur = round(round(end, 3) - ts, 3)
        common = {"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": 1, "ts": ts, "dur": dur}
        self._events[rank].append({**common, "args": {"step": self._number, **args}})

    def _say(self, rank: int, name: str, /, **args: Any) -> None:
        self._events[rank].append({"ph": "M", "name": name, "pid": rank, "tid": 0, "ts": self._now[rank], "args": args})


def make_planned(job: Job) -> dict[str, Any]:
    """What `undertow.plan` says of this job."""
    profile = Profile(
        layers=tuple(
            LayerProfile(
                name=f"layer{layer}",
                tensors=(TensorProfile(name=job.tensor(layer), shape=(job.size_bytes // 4,)),),
                forward_s=job.forward_us / 1e6,
                backward_s=job.backward_us / 1e6,
            )
            for layer in range(job.layers)
        )
    )
    rate = job.bytes_per_us * 1e6
    cluster = Cluster(workers=job.ranks, bytes_per_s=rate, flops_per_s=1e12, shard_flops_per_s=1e11)
    plan = make_plan(profile, cluster, has_gates=job.has_gates)
    return {
        name: msgspec.to_builtins(one) for name, one in (("plan", plan), ("profile", profile), ("cluster", cluster))
    }
