"""Notes become events of Chrome's trace viewer, which ui.perfetto.dev opens.

In: the notes of one rank, in their order.  Out: events, as docs/trace.md describes them.
One event for each note, or two; what a note alone does not tell (which step it is in, which tensors a key carries, when
the slice before it was through) is kept here.  Must be quick, because it runs beside the training: events are written
as text at once, which takes half of the time of making objects of them first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from undertow.core.frames import Kind
from undertow.trace import notes
from undertow.trace.arrows import Arrows
from undertow.trace.clocks import Clocks
from undertow.trace.conversion import Conversion
from undertow.trace.lanes import Lane, describe_lane, lane_from, lane_to
from undertow.trace.notes import Note
from undertow.trace.window import EVERYTHING, Window

FORMAT = 1
# In the outbox for less, a slice has not really waited.
QUEUED_S = 0.0001
# An arrow at the very end of a span would hold to what follows it.
INSIDE_S = 0.000001

_KINDS = {int(kind): kind.name.lower() for kind in Kind}
_PUSH, _RESULT = int(Kind.PUSH), int(Kind.RESULT)
_NOTHING: deque[notes.Sent] = deque()


class Carried(NamedTuple):
    """By a key: tensors, what they are called together, and their names as JSON has them."""

    tensors: tuple[str, ...]
    name: str
    quoted: str


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
    """Of one rank.  Each event is a text of JSON in one line; only those of steps in the window are made."""

    def __init__(self, about: About, clocks: Clocks, window: Window = EVERYTHING) -> None:
        self.step = 0
        self._about = about
        self._rank = about.rank
        self._conversion = Conversion(clocks)
        self._ts = self._conversion.convert
        self._window = window
        self._is_wanted = window.holds(0)  # what is told of this step
        self._events: list[str] = []  # that were not taken yet
        self._kept: dict[tuple[str, str, str], str] = {}  # facts for later; of each the newest
        self._quoted: dict[str, str] = {}  # names, as JSON has them
        self._lanes: set[int] = set()  # that have been named
        self._free_s: dict[int, float] = {}  # of lanes that carry one thing at a time: the end of the one before
        self._carried: dict[int, Carried] = {}  # by each key
        self._sent: dict[int, deque[notes.Sent]] = {}  # of each peer, until written
        self._model: int | None = None  # whose passes are the steps
        self._is_between = True  # no pass has begun in this step, and none of its forwards
        self._step_s: float | None = None  # when it began
        self._computed_s = 0.0  # until then, what backward has done is told
        self._arrows = Arrows(self._draw)
        self._first_arrow = about.rank << 32  # viewers want numbers, and tell no ranks apart by them

    def open(self) -> list[str]:
        self._tell_fact("process_name", name=f"rank {self._rank} on {self._about.host}")
        self._tell_fact("process_sort_index", sort_index=self._rank)
        self._tell_fact("undertow", **msgspec.to_builtins(self._about))
        return self._take()

    def close(self, reason: str) -> list[str]:
        self._tell_fact("undertow.end", reason=reason)
        return self._take()

    def compose(self, taken: Iterable[Note]) -> list[str]:
        """What these notes tell."""
        self._conversion.refresh()
        for note in taken:
            tell = _TELLERS.get(type(note))
            if tell is not None:
                tell(self, note)
        return self._take()

    def _take(self) -> list[str]:
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
        self._is_wanted = self._window.holds(self.step)
        if self._is_wanted and self._kept:
            self._events += self._kept.values()
            self._kept = {}
        self._step_s = time_s

    # The training thread

    def _tell_forward(self, note: notes.Forward) -> None:
        self._tell_span(Lane.COMPUTE, "forward", note.layer, note.began_s, note.ended_s)

    def _tell_hooked(self, note: notes.Hooked) -> None:
        tensor = note.tensor
        if note.began_s > self._computed_s:
            layer = notes.find_layer(tensor)
            self._tell_span(Lane.COMPUTE, "backward", layer, self._computed_s, note.began_s)
        self._computed_s = note.ended_s
        args = f',"tensor":{self._quote(tensor)}'
        self._tell_span(Lane.COMPUTE, "hook", tensor, note.began_s, note.ended_s, args)
        self._arrows.begin(tensor, note.began_s)

    def _tell_waited(self, note: notes.Waited) -> None:
        args = f',"reason":{self._quote(note.reason)}'
        if note.tensor:
            args += f',"tensor":{self._quote(note.tensor)}'
        self._tell_span(
            Lane.COMPUTE, "wait", f"wait for {note.tensor or note.reason}", note.began_s, note.ended_s, args
        )
        # Backward may wait in between, for a turn or a gate.
        self._computed_s = max(self._computed_s, note.ended_s)
        self._arrows.end((note.tensor,), max(note.began_s, note.ended_s - INSIDE_S))

    def _tell_applied(self, note: notes.Applied) -> None:
        name, args = f"apply {_name(note.tensors)}", f',"tensors":{_dump(note.tensors)},"stepped":{_dump(note.stepped)}'
        self._tell_span(Lane.COMPUTE, "apply", name, note.began_s, note.ended_s, args)
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
        args = f',"tensors":{_dump(note.tensors)},"bytes":{note.size_bytes}'
        self._tell_span(Lane.ALLREDUCE, "allreduce", _name(note.tensors), began_s, note.ended_s, args)

    # The engine

    def _tell_sent(self, note: notes.Sent) -> None:
        self._sent.setdefault(note.peer, deque()).append(note)
        if note.time_s - note.queued_s < QUEUED_S or not self._is_wanted:
            return
        self._name_lane(Lane.QUEUE)
        carried, rank = self._find_carried(note.key), self._rank
        number = f"{rank}.{note.peer}.{note.kind}.{note.key}.{note.round}"
        common = f'"cat":"queue","name":"queue","id":"{number}","pid":{rank},"tid":{Lane.QUEUE}'
        args = f'"of":{self._quote(carried.name)},"step":{self.step}{_describe(note, carried)},"to":{note.peer}'
        self._events.append(f'{{"ph":"b","ts":{self._ts(note.queued_s):.3f},{common},"args":{{{args}}}}}')
        self._events.append(f'{{"ph":"e","ts":{self._ts(note.time_s):.3f},{common},"args":{{}}}}')

    def _tell_written(self, note: notes.Written) -> None:
        sent = self._find_sent(note)
        if sent is None:
            return  # it left before the record began
        carried, lane = self._find_carried(note.key), lane_to(note.peer)
        began_s = self._occupy(lane, sent.time_s, note.time_s)
        args = f'{_describe(sent, carried)},"to":{note.peer},"sent":{self._ts(sent.time_s):.3f}'
        args += f',"queued":{self._ts(sent.queued_s):.3f}'
        self._tell_span(lane, "wire-out", carried.name, began_s, note.time_s, args)
        if note.kind == _PUSH:
            self._arrows.leave(carried.tensors, sent.queued_s, began_s, lane)

    def _find_sent(self, note: notes.Written) -> notes.Sent | None:
        """The first of that kind: on a real link it is the first of all."""
        waiting = self._sent.get(note.peer, _NOTHING)
        for index, sent in enumerate(waiting):
            if sent.key == note.key and sent.round == note.round and sent.kind == note.kind:
                del waiting[index]
                return sent
        return None

    def _tell_received(self, note: notes.Received) -> None:
        carried, lane = self._find_carried(note.key), lane_from(note.peer)
        began_s = self._occupy(lane, note.began_s, note.ended_s)
        args = f'{_describe(note, carried)},"from":{note.peer}'
        self._tell_span(lane, "wire-in", carried.name, began_s, note.ended_s, args)
        if note.kind == _RESULT:
            self._arrows.come_back(carried.tensors, max(began_s, note.ended_s - INSIDE_S), lane)

    def _tell_summed(self, note: notes.Summed) -> None:
        carried = self._find_carried(note.key)
        args = f',"key":{note.key},"round":{note.round},"tensors":{carried.quoted}'
        self._tell_span(Lane.SHARD, "shard", carried.name, note.began_s, note.ended_s, args)

    def _find_carried(self, key: int) -> Carried:
        return self._carried.get(key, _UNNAMED)

    # What the others mean

    def _tell_named(self, note: notes.Named) -> None:
        new = {key: names for key, names in note.tensors.items() if self._find_carried(key).tensors != names}
        if not new:
            return  # a call that is made again and again
        for key, names in new.items():
            self._carried[key] = Carried(names, _name(names), _dump(names))
        self._arrows.expect(note.tensors)
        tensors = {str(key): names for key, names in note.tensors.items()}
        self._tell_fact("undertow.table", note.time_s, table=note.table, op=note.op, tensors=tensors)

    def _tell_planned(self, note: notes.Planned) -> None:
        known = {"plan": note.plan, "profile": note.profile, "cluster": note.cluster}
        self._tell_fact("undertow.plan", note.time_s, **{name: one for name, one in known.items() if one is not None})

    def _tell_linked(self, note: notes.Linked) -> None:
        self._tell_fact("undertow.link", note.time_s, bytes_per_s=note.bytes_per_s)

    def _tell_compared(self, note: notes.Compared) -> None:
        self._tell_fact("undertow.clock", note.time_s, offset_s=note.offset_s, round_trip_s=note.round_trip_s)

    # Events

    def _tell_span(self, lane: int, cat: str, name: str, began_s: float, ended_s: float, args: str = "") -> None:
        if not self._is_wanted:
            return
        if lane not in self._lanes:
            self._name_lane(lane)
        began = self._ts(began_s)
        duration = self._ts(ended_s) - began if ended_s > began_s else 0.0
        self._events.append(
            f'{{"ph":"X","cat":"{cat}","name":{self._quote(name)},"pid":{self._rank},"tid":{lane},'
            f'"ts":{began:.3f},"dur":{duration:.3f},"args":{{"step":{self.step}{args}}}}}'
        )

    def _tell_fact(self, kind: str, time_s: float | None = None, *, lane: int = 0, **args: Any) -> None:
        """What the others cannot be read without.  Before the steps that are wanted, the newest of each is kept."""
        when = "" if time_s is None else f'"ts":{self._ts(time_s):.3f},'
        fact = f'{{"ph":"M","name":"{kind}","pid":{self._rank},"tid":{lane},{when}"args":{_dump(args)}}}'
        if self._is_wanted or time_s is None:
            self._events.append(fact)
        else:
            self._kept[kind, str(args.get("table")), min(args.get("tensors", ("",)))] = fact

    def _draw(self, phase: str, number: int, time_s: float, lane: int) -> None:
        """One end of an arrow, or a stop on its way."""
        if self._is_wanted:
            binding = ',"bp":"e"' if phase == "f" else ""
            self._events.append(
                f'{{"ph":"{phase}","cat":"gradient","name":"gradient","id":{self._first_arrow + number},'
                f'"pid":{self._rank},"tid":{lane},"ts":{self._ts(time_s):.3f}{binding}}}'
            )

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

    def _quote(self, name: str) -> str:
        quoted = self._quoted.get(name)
        if quoted is None:
            quoted = self._quoted[name] = _dump(name)
        return quoted


def _describe(note: notes.Sent | notes.Received, carried: Carried) -> str:
    return (
        f',"kind":"{_KINDS[note.kind]}","key":{note.key},"round":{note.round},"bytes":{note.size_bytes}'
        f',"tensors":{carried.quoted}'
    )


def _name(tensors: tuple[str, ...]) -> str:
    """Of what a slice carries."""
    if len(tensors) == 1:
        return tensors[0]
    return f"{tensors[0]} and {len(tensors) - 1} more" if tensors else "unnamed"


def _dump(value: Any) -> str:
    return msgspec.json.encode(value).decode()


_UNNAMED = Carried((), _name(()), "[]")


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
