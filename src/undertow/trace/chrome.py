"""Notes become events of Chrome's trace viewer, which ui.perfetto.dev opens.

In: the notes of one rank, in their order.  Out: events, as docs/trace.md describes them.
One event for each note, or two; what a note alone does not tell (which step it is in, which tensors a key carries, when
the slice before it was through) is kept here.  Must be quick: it runs beside the training.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from undertow.core.frames import Kind
from undertow.trace import notes
from undertow.trace.arrows import Arrows
from undertow.trace.clocks import Clocks
from undertow.trace.lanes import Lane, describe_lane, lane_from, lane_to
from undertow.trace.notes import Note

FORMAT = 1
# In the outbox for less, a slice has not really waited.
QUEUED_S = 0.0001
# An arrow at the very end of a span would hold to what follows it.
INSIDE_S = 0.000001
Event = dict[str, Any]

_KINDS = {int(kind): kind.name.lower() for kind in Kind}
_PUSH, _RESULT = int(Kind.PUSH), int(Kind.RESULT)
_NOTHING: deque[notes.Sent] = deque()


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace says of itself."""

    rank: int
    world_size: int
    host: str
    version: str
    source: str = "worker"  # or simulator
    script: str = ""
    started: str = ""  # the same on all ranks of a run
    format: int = FORMAT


class Composer:
    """Of one rank."""

    def __init__(self, about: About, clocks: Clocks) -> None:
        self.step = 0
        self._about = about
        self._rank = about.rank
        self._clocks = clocks
        self._events: list[Event] = []  # that were not taken yet
        self._lanes: set[int] = set()  # that have been named
        self._free_s: dict[int, float] = {}  # of lanes that carry one thing at a time: the end of the one before
        self._tensors: dict[int, tuple[str, ...]] = {}  # of each key
        self._sent: dict[int, deque[notes.Sent]] = {}  # of each peer, until written
        self._model: int | None = None  # whose passes are the steps
        self._is_between = True  # no pass has begun in this step, and none of its forwards
        self._step_s: float | None = None  # when it began
        self._computed_s = 0.0  # until then, what backward has done is told
        self._arrows = Arrows(self._draw)

    def open(self) -> list[Event]:
        self._tell_fact("process_name", name=f"rank {self._rank} on {self._about.host}")
        self._tell_fact("process_sort_index", sort_index=self._rank)
        self._tell_fact("undertow", **msgspec.to_builtins(self._about))
        return self._take()

    def close(self, reason: str) -> list[Event]:
        self._tell_fact("undertow.end", reason=reason)
        return self._take()

    def compose(self, note: Note) -> list[Event]:
        """What this note tells."""
        tell = _TELLERS.get(type(note))
        if tell is None:
            return []
        tell(self, note)
        return self._take()

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # Steps

    def _tell_forward_began(self, note: notes.ForwardBegan) -> None:
        if self._is_step_of(note.model) and self._is_between:
            self._is_between = False
            self._begin_step(note.time_s)

    def _tell_pass_began(self, note: notes.PassBegan) -> None:
        self._computed_s = note.time_s
        if self._is_step_of(note.model) and self._is_between:
            self._begin_step(note.time_s)

    def _tell_pass_ended(self, note: notes.PassEnded) -> None:
        self._is_between |= self._is_step_of(note.model)

    def _is_step_of(self, model: int) -> bool:
        """The first model that trains gives the beat."""
        if self._model is None:
            self._model = model
        return self._model == model

    def _begin_step(self, time_s: float) -> None:
        if self._step_s is not None:
            self._tell_span(Lane.STEPS, "step", f"step {self.step}", self._step_s, time_s)
        self.step += 1
        self._step_s = time_s

    # The training thread

    def _tell_forward(self, note: notes.Forward) -> None:
        self._tell_span(Lane.COMPUTE, "forward", note.layer, note.began_s, note.ended_s)

    def _tell_hooked(self, note: notes.Hooked) -> None:
        tensor = note.tensor
        if note.began_s > self._computed_s:
            layer = tensor.rpartition(".")[0] or tensor
            self._tell_span(Lane.COMPUTE, "backward", layer, self._computed_s, note.began_s)
        self._computed_s = note.ended_s
        self._tell_span(Lane.COMPUTE, "hook", tensor, note.began_s, note.ended_s, {"tensor": tensor})
        self._arrows.begin(tensor, note.began_s)

    def _tell_waited(self, note: notes.Waited) -> None:
        args = {"reason": note.reason, "tensor": note.tensor} if note.tensor else {"reason": note.reason}
        self._tell_span(
            Lane.COMPUTE, "wait", f"wait for {note.tensor or note.reason}", note.began_s, note.ended_s, args
        )
        # Backward may wait in between, for a turn or a gate.
        self._computed_s = max(self._computed_s, note.ended_s)
        self._arrows.end((note.tensor,), max(note.began_s, note.ended_s - INSIDE_S))

    def _tell_applied(self, note: notes.Applied) -> None:
        args = {"tensors": note.tensors, "stepped": note.stepped}
        self._tell_span(Lane.COMPUTE, "apply", f"apply {_name(note.tensors)}", note.began_s, note.ended_s, args)
        self._arrows.end(note.tensors, note.began_s)

    def _tell_stepped(self, note: notes.Stepped) -> None:
        self._tell_span(Lane.COMPUTE, "optimizer", f"{note.optimizer}.step", note.began_s, note.ended_s)

    def _tell_turn_awaited(self, note: notes.TurnAwaited) -> None:
        self._computed_s = max(self._computed_s, note.ended_s)
        self._tell_span(Lane.COMPUTE, "turn-wait", "wait for the turn", note.began_s, note.ended_s)

    def _tell_turn_held(self, note: notes.TurnHeld) -> None:
        self._tell_span(Lane.TURN, "turn", "turn", note.began_s, note.ended_s)

    def _tell_reduced(self, note: notes.Reduced) -> None:
        began_s = self._occupy(Lane.ALLREDUCE, note.began_s, note.ended_s)
        args = {"tensors": note.tensors, "bytes": note.size_bytes}
        self._tell_span(Lane.ALLREDUCE, "allreduce", _name(note.tensors), began_s, note.ended_s, args)

    # The engine

    def _tell_sent(self, note: notes.Sent) -> None:
        self._sent.setdefault(note.peer, deque()).append(note)
        if note.time_s - note.queued_s < QUEUED_S:
            return
        self._name_lane(Lane.QUEUE)
        number = f"{self._rank}.{note.peer}.{note.kind}.{note.key}.{note.round}"
        common = {"cat": "queue", "name": "queue", "id": number, "pid": self._rank, "tid": Lane.QUEUE}
        args = {"of": _name(self._tensors.get(note.key, ())), **self._describe(note), "to": note.peer}
        self._events.append({"ph": "b", "ts": self._ts(note.queued_s), **common, "args": args})
        self._events.append({"ph": "e", "ts": self._ts(note.time_s), **common, "args": {}})

    def _tell_written(self, note: notes.Written) -> None:
        sent = self._find_sent(note)
        if sent is None:
            return  # it left before the record began
        tensors, lane = self._tensors.get(note.key, ()), lane_to(note.peer)
        began_s = self._occupy(lane, sent.time_s, note.time_s)
        args = self._describe(sent)
        args |= {"to": note.peer, "sent": self._ts(sent.time_s), "queued": self._ts(sent.queued_s)}
        self._tell_span(lane, "wire-out", _name(tensors), began_s, note.time_s, args)
        if note.kind == _PUSH:
            self._arrows.leave(tensors, sent.queued_s, began_s, lane)

    def _find_sent(self, note: notes.Written) -> notes.Sent | None:
        """The first of that kind: on a real link it is the first of all."""
        waiting = self._sent.get(note.peer, _NOTHING)
        for index, sent in enumerate(waiting):
            if sent.key == note.key and sent.round == note.round and sent.kind == note.kind:
                del waiting[index]
                return sent
        return None

    def _tell_received(self, note: notes.Received) -> None:
        tensors, lane = self._tensors.get(note.key, ()), lane_from(note.peer)
        began_s = self._occupy(lane, note.began_s, note.ended_s)
        args = self._describe(note)
        args["from"] = note.peer
        self._tell_span(lane, "wire-in", _name(tensors), began_s, note.ended_s, args)
        if note.kind == _RESULT:
            self._arrows.come_back(tensors, max(began_s, note.ended_s - INSIDE_S), lane)

    def _tell_summed(self, note: notes.Summed) -> None:
        tensors = self._tensors.get(note.key, ())
        args = {"key": note.key, "round": note.round, "tensors": tensors}
        self._tell_span(Lane.SHARD, "shard", _name(tensors), note.began_s, note.ended_s, args)

    def _describe(self, note: notes.Sent | notes.Received) -> dict[str, Any]:
        return {
            "step": self.step,
            "kind": _KINDS[note.kind],
            "key": note.key,
            "round": note.round,
            "bytes": note.size_bytes,
            "tensors": self._tensors.get(note.key, ()),
        }

    # What the others mean

    def _tell_named(self, note: notes.Named) -> None:
        self._tensors.update(note.tensors)
        self._arrows.expect(note.tensors)
        tensors = {str(key): names for key, names in note.tensors.items()}
        self._tell_fact("undertow.table", note.time_s, table=note.table, op=note.op, tensors=tensors)

    def _tell_planned(self, note: notes.Planned) -> None:
        known = {"plan": note.plan, "profile": note.profile, "cluster": note.cluster}
        built = {name: msgspec.to_builtins(value) for name, value in known.items() if value is not None}
        self._tell_fact("undertow.plan", note.time_s, **built)

    def _tell_linked(self, note: notes.Linked) -> None:
        self._tell_fact("undertow.link", note.time_s, bytes_per_s=note.bytes_per_s)

    def _tell_compared(self, note: notes.Compared) -> None:
        self._tell_fact("undertow.clock", note.time_s, offset_s=note.offset_s, round_trip_s=note.round_trip_s)

    # Events

    def _tell_span(
        self, lane: int, cat: str, name: str, began_s: float, ended_s: float, args: dict[str, Any] | None = None
    ) -> None:
        if lane not in self._lanes:
            self._name_lane(lane)
        began, ended = self._ts(began_s), self._ts(ended_s)
        self._events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": self._rank,
                "tid": lane,
                "ts": began,
                "dur": round(ended - began, 3) if ended > began else 0.0,
                "args": {"step": self.step} if args is None else {"step": self.step, **args},
            }
        )

    def _tell_fact(self, kind: str, time_s: float | None = None, *, lane: int = 0, **args: Any) -> None:
        when = {} if time_s is None else {"ts": self._ts(time_s)}
        self._events.append({"ph": "M", "name": kind, "pid": self._rank, "tid": lane, **when, "args": args})

    def _draw(self, phase: str, number: int, time_s: float, lane: int) -> None:
        """One end of an arrow, or a stop on its way."""
        event: Event = {"ph": phase, "cat": "gradient", "name": "gradient", "id": f"{self._rank}.{number}"}
        event |= {"pid": self._rank, "tid": lane, "ts": self._ts(time_s)}
        if phase == "f":
            event["bp"] = "e"
        self._events.append(event)

    def _occupy(self, lane: int, from_s: float, to_s: float) -> float:
        """When this lane, which carries one thing at a time, comes to what is asked for."""
        free_s = self._free_s.get(lane, 0.0)
        self._free_s[lane] = max(free_s, to_s)
        return min(to_s, max(from_s, free_s))

    def _name_lane(self, lane: int) -> None:
        if lane not in self._lanes:
            self._lanes.add(lane)
            self._tell_fact("thread_name", lane=lane, name=describe_lane(lane))
            self._tell_fact("thread_sort_index", lane=lane, sort_index=lane)

    def _ts(self, time_s: float) -> float:
        return round(self._clocks.convert(time_s) * 1e6, 3)


def _name(tensors: tuple[str, ...]) -> str:
    """Of what a slice carries."""
    if len(tensors) == 1:
        return tensors[0]
    return f"{tensors[0]} and {len(tensors) - 1} more" if tensors else "unnamed"


_TELLERS: dict[type[Note], Any] = {
    notes.ForwardBegan: Composer._tell_forward_began,
    notes.Forward: Composer._tell_forward,
    notes.PassBegan: Composer._tell_pass_began,
    notes.Hooked: Composer._tell_hooked,
    notes.PassEnded: Composer._tell_pass_ended,
    notes.Sent: Composer._tell_sent,
    notes.Written: Composer._tell_written,
    notes.Received: Composer._tell_received,
    notes.Summed: Composer._tell_summed,
    notes.Reduced: Composer._tell_reduced,
    notes.Waited: Composer._tell_waited,
    notes.Applied: Composer._tell_applied,
    notes.Stepped: Composer._tell_stepped,
    notes.TurnAwaited: Composer._tell_turn_awaited,
    notes.TurnHeld: Composer._tell_turn_held,
    notes.Named: Composer._tell_named,
    notes.Planned: Composer._tell_planned,
    notes.Linked: Composer._tell_linked,
    notes.Compared: Composer._tell_compared,
}
