"""Converts trace events to the format of Chrome's trace viewer, which ui.perfetto.dev opens.

In: the events of one rank, in their order.  Out: lines of JSON, as docs/trace.md describes them.
An event becomes one or two lines.  Facts that a single event lacks (its step, the tensors of its key, the end of the
previous slice on the same link) are remembered from earlier events.  Conversion runs beside the training and must be
fast: lines are formatted as text directly, which takes half the time of building objects first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from undertow.engine.core.frames import Kind
from undertow.observe.trace.clocks import Clocks, Conversion
from undertow.observe.trace.lanes import Arrows, Lane, describe_lane, lane_from, lane_to
from undertow.tracing import events
from undertow.tracing.events import TraceEvent
from undertow.tracing.window import EVERYTHING, Window

FORMAT = 1
# Shorter times in the send queue are not drawn.
QUEUED_S = 0.0001
# Viewers attach an arrow at the very end of a span to the next span, so arrows end a little earlier.
INSIDE_S = 0.000001

_KINDS = {int(kind): kind.name.lower() for kind in Kind}
_PUSH, _RESULT = int(Kind.PUSH), int(Kind.RESULT)
_NOTHING: deque[events.Sent] = deque()


class KeyTensors(NamedTuple):
    """The tensors that a key carries: their names, one name for all, and the names as JSON."""

    names: tuple[str, ...]
    name: str
    quoted: str


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a trace: the rank that wrote it, its job and its program."""

    rank: int
    world_size: int
    host: str = ""
    version: str = ""
    source: str = "worker"  # or simulator
    script: str = ""
    started: str = ""  # equal on all ranks of a run
    format: int = FORMAT


class Composer:
    """Converter of one rank's events to lines, for steps in the window only."""

    def __init__(self, header: TraceHeader, clocks: Clocks, window: Window = EVERYTHING) -> None:
        self.step = 0
        self._header = header
        self._rank = header.rank
        self._conversion = Conversion(clocks)
        self._ts = self._conversion.convert
        self._window = window
        self._is_wanted = window.holds(0)  # whether the current step is in the window
        self._lines: list[str] = []  # not taken yet
        self._kept: dict[tuple[str, str, str], str] = {}  # newest fact of each kind, for the first step in the window
        self._quoted: dict[str, str] = {}  # names as JSON
        self._lanes: set[int] = set()  # lanes that were named
        self._free_s: dict[int, float] = {}  # end of the latest span in each lane that shows one at a time
        self._tensors: dict[int, KeyTensors] = {}  # by key
        self._sent: dict[int, deque[events.Sent]] = {}  # by peer, until written
        self._model: int | None = None  # the model whose passes are the steps
        self._is_between = True  # the next forward or pass begins a step
        self._step_s: float | None = None  # when the current step began
        self._computed_s = 0.0  # end of the latest span of backward
        self._arrows = Arrows(self._draw)
        self._first_arrow = header.rank << 32  # viewers need numbers that differ between ranks

    def open(self) -> list[str]:
        self._add_fact("process_name", name=f"rank {self._rank} on {self._header.host}")
        self._add_fact("process_sort_index", sort_index=self._rank)
        self._add_fact("undertow", **msgspec.to_builtins(self._header))
        return self._take()

    def close(self, reason: str) -> list[str]:
        self._add_fact("undertow.end", reason=reason)
        return self._take()

    def compose(self, taken: Iterable[TraceEvent]) -> list[str]:
        self._conversion.refresh()
        for event in taken:
            handle = _HANDLERS.get(type(event))
            if handle is not None:
                handle(self, event)
        return self._take()

    def _take(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    # Steps

    def _on_forward_began(self, event: events.ForwardBegan) -> None:
        if self._is_step_of(event.model) and self._is_between:
            self._is_between = False
            self._begin_step(event.time_s)

    def _on_pass_began(self, event: events.PassBegan) -> None:
        self._computed_s = event.time_s
        if self._is_step_of(event.model) and self._is_between:
            self._begin_step(event.time_s)

    def _on_pass_ended(self, event: events.PassEnded) -> None:
        self._is_between |= self._is_step_of(event.model)

    def _is_step_of(self, model: int) -> bool:
        """Return true for the first model that trains: its passes are the steps."""
        if self._model is None:
            self._model = model
        return self._model == model

    def _begin_step(self, time_s: float) -> None:
        if self._step_s is not None:
            self._add_span(Lane.STEPS, "step", f"step {self.step}", self._step_s, time_s)
        self.step += 1
        self._is_wanted = self._window.holds(self.step)
        if self._is_wanted and self._kept:
            self._lines += self._kept.values()
            self._kept = {}
        self._step_s = time_s

    # The training thread

    def _on_forward(self, event: events.Forward) -> None:
        self._add_span(Lane.COMPUTE, "forward", event.layer, event.began_s, event.ended_s)

    def _on_hooked(self, event: events.Hooked) -> None:
        tensor = event.tensor
        if event.began_s > self._computed_s:
            layer = events.find_layer(tensor)
            self._add_span(Lane.COMPUTE, "backward", layer, self._computed_s, event.began_s)
        self._computed_s = event.ended_s
        args = f',"tensor":{self._quote(tensor)}'
        self._add_span(Lane.COMPUTE, "hook", tensor, event.began_s, event.ended_s, args)
        self._arrows.begin(tensor, event.began_s)

    def _on_waited(self, event: events.Waited) -> None:
        args = f',"reason":{self._quote(event.reason)}'
        if event.tensor:
            args += f',"tensor":{self._quote(event.tensor)}'
        self._add_span(
            Lane.COMPUTE, "wait", f"wait for {event.tensor or event.reason}", event.began_s, event.ended_s, args
        )
        # Backward may wait in between, for a turn or a gate.
        self._computed_s = max(self._computed_s, event.ended_s)
        self._arrows.end((event.tensor,), max(event.began_s, event.ended_s - INSIDE_S))

    def _on_applied(self, event: events.Applied) -> None:
        args = f',"tensors":{_dump(event.tensors)},"stepped":{_dump(event.stepped)}'
        self._add_span(Lane.COMPUTE, "apply", f"apply {_name(event.tensors)}", event.began_s, event.ended_s, args)
        self._arrows.end(event.tensors, event.began_s)

    def _on_stepped(self, event: events.Stepped) -> None:
        self._add_span(Lane.COMPUTE, "optimizer", f"{event.optimizer}.step", event.began_s, event.ended_s)

    def _on_turn_awaited(self, event: events.TurnAwaited) -> None:
        self._computed_s = max(self._computed_s, event.ended_s)
        self._add_span(Lane.COMPUTE, "turn-wait", "wait for the turn", event.began_s, event.ended_s)

    def _on_turn_held(self, event: events.TurnHeld) -> None:
        self._add_span(Lane.TURN, "turn", "turn", event.began_s, event.ended_s)

    def _on_reduced(self, event: events.Reduced) -> None:
        began_s = self._occupy(Lane.ALLREDUCE, event.began_s, event.ended_s)
        args = f',"tensors":{_dump(event.tensors)},"bytes":{event.size_bytes}'
        self._add_span(Lane.ALLREDUCE, "allreduce", _name(event.tensors), began_s, event.ended_s, args)

    # The engine

    def _on_sent(self, event: events.Sent) -> None:
        self._sent.setdefault(event.peer, deque()).append(event)
        if event.time_s - event.queued_s < QUEUED_S or not self._is_wanted:
            return
        self._name_lane(Lane.QUEUE)
        tensors, rank = self._find_tensors(event.key), self._rank
        number = f"{rank}.{event.peer}.{event.kind}.{event.key}.{event.round}"
        common = f'"cat":"queue","name":"queue","id":"{number}","pid":{rank},"tid":{Lane.QUEUE}'
        args = f'"of":{self._quote(tensors.name)},"step":{self.step}{_describe(event, tensors)},"to":{event.peer}'
        self._lines.append(f'{{"ph":"b","ts":{self._ts(event.queued_s):.3f},{common},"args":{{{args}}}}}')
        self._lines.append(f'{{"ph":"e","ts":{self._ts(event.time_s):.3f},{common},"args":{{}}}}')

    def _on_written(self, event: events.Written) -> None:
        sent = self._find_sent(event)
        if sent is None:
            return  # sent before recording began
        tensors, lane = self._find_tensors(event.key), lane_to(event.peer)
        began_s = self._occupy(lane, sent.time_s, event.time_s)
        args = f'{_describe(sent, tensors)},"to":{event.peer},"sent":{self._ts(sent.time_s):.3f}'
        args += f',"queued":{self._ts(sent.queued_s):.3f}'
        self._add_span(lane, "wire-out", tensors.name, began_s, event.time_s, args)
        if event.kind == _PUSH:
            self._arrows.leave(tensors.names, sent.queued_s, began_s, lane)

    def _find_sent(self, event: events.Written) -> events.Sent | None:
        """Remove and return the event of the same slice; on a real link it is always the oldest one."""
        waiting = self._sent.get(event.peer, _NOTHING)
        for index, sent in enumerate(waiting):
            if sent.key == event.key and sent.round == event.round and sent.kind == event.kind:
                del waiting[index]
                return sent
        return None

    def _on_received(self, event: events.Received) -> None:
        tensors, lane = self._find_tensors(event.key), lane_from(event.peer)
        began_s = self._occupy(lane, event.began_s, event.ended_s)
        args = f'{_describe(event, tensors)},"from":{event.peer}'
        self._add_span(lane, "wire-in", tensors.name, began_s, event.ended_s, args)
        if event.kind == _RESULT:
            self._arrows.come_back(tensors.names, max(began_s, event.ended_s - INSIDE_S), lane)

    def _on_summed(self, event: events.Summed) -> None:
        tensors = self._find_tensors(event.key)
        args = f',"key":{event.key},"round":{event.round},"tensors":{tensors.quoted}'
        self._add_span(Lane.SHARD, "shard", tensors.name, event.began_s, event.ended_s, args)

    def _find_tensors(self, key: int) -> KeyTensors:
        return self._tensors.get(key, _UNNAMED)

    # Facts that are needed to read the other lines

    def _on_named(self, event: events.Named) -> None:
        new = {key: names for key, names in event.tensors.items() if self._find_tensors(key).names != names}
        if not new:
            return  # repeated calls name the same tensors
        for key, names in new.items():
            self._tensors[key] = KeyTensors(names, _name(names), _dump(names))
        self._arrows.expect(event.tensors)
        tensors = {str(key): names for key, names in event.tensors.items()}
        self._add_fact("undertow.table", event.time_s, table=event.table, op=event.op, tensors=tensors)

    def _on_planned(self, event: events.Planned) -> None:
        known = {"plan": event.plan, "profile": event.profile, "cluster": event.cluster}
        self._add_fact("undertow.plan", event.time_s, **{name: one for name, one in known.items() if one is not None})

    def _on_linked(self, event: events.Linked) -> None:
        self._add_fact("undertow.link", event.time_s, bytes_per_s=event.bytes_per_s)

    def _on_compared(self, event: events.Compared) -> None:
        self._add_fact("undertow.clock", event.time_s, offset_s=event.offset_s, round_trip_s=event.round_trip_s)

    # Lines

    def _add_span(self, lane: int, cat: str, name: str, began_s: float, ended_s: float, args: str = "") -> None:
        if not self._is_wanted:
            return
        if lane not in self._lanes:
            self._name_lane(lane)
        began = self._ts(began_s)
        duration = self._ts(ended_s) - began if ended_s > began_s else 0.0
        self._lines.append(
            f'{{"ph":"X","cat":"{cat}","name":{self._quote(name)},"pid":{self._rank},"tid":{lane},'
            f'"ts":{began:.3f},"dur":{duration:.3f},"args":{{"step":{self.step}{args}}}}}'
        )

    def _add_fact(self, kind: str, time_s: float | None = None, *, lane: int = 0, **args: Any) -> None:
        """Add a line that is needed to read others.  Before the window, only the newest fact of each kind is kept."""
        when = "" if time_s is None else f'"ts":{self._ts(time_s):.3f},'
        fact = f'{{"ph":"M","name":"{kind}","pid":{self._rank},"tid":{lane},{when}"args":{_dump(args)}}}'
        if self._is_wanted or time_s is None:
            self._lines.append(fact)
        else:
            self._kept[kind, str(args.get("table")), min(args.get("tensors", ("",)))] = fact

    def _draw(self, phase: str, number: int, time_s: float, lane: int) -> None:
        """Add the start, a point on the way or the end of an arrow."""
        if self._is_wanted:
            binding = ',"bp":"e"' if phase == "f" else ""
            self._lines.append(
                f'{{"ph":"{phase}","cat":"gradient","name":"gradient","id":{self._first_arrow + number},'
                f'"pid":{self._rank},"tid":{lane},"ts":{self._ts(time_s):.3f}{binding}}}'
            )

    def _occupy(self, lane: int, from_s: float, to_s: float) -> float:
        """Return `from_s`, or the end of the previous span if later: such a lane shows one span at a time."""
        free_s = self._free_s.get(lane, 0.0)
        self._free_s[lane] = max(free_s, to_s)
        return min(to_s, max(from_s, free_s))

    def _name_lane(self, lane: int) -> None:
        if lane not in self._lanes:
            self._lanes.add(lane)
            self._add_fact("thread_name", lane=lane, name=describe_lane(lane))
            self._add_fact("thread_sort_index", lane=lane, sort_index=lane)

    def _quote(self, name: str) -> str:
        quoted = self._quoted.get(name)
        if quoted is None:
            quoted = self._quoted[name] = _dump(name)
        return quoted


def _describe(event: events.Sent | events.Received, tensors: KeyTensors) -> str:
    return (
        f',"kind":"{_KINDS[event.kind]}","key":{event.key},"round":{event.round},"bytes":{event.size_bytes}'
        f',"tensors":{tensors.quoted}'
    )


def _name(tensors: tuple[str, ...]) -> str:
    """Return one name for all tensors of a slice."""
    if len(tensors) == 1:
        return tensors[0]
    return f"{tensors[0]} and {len(tensors) - 1} more" if tensors else "unnamed"


def _dump(value: Any) -> str:
    return msgspec.json.encode(value).decode()


_UNNAMED = KeyTensors((), _name(()), "[]")


_HANDLERS: dict[type[TraceEvent], Any] = {
    events.ForwardBegan: Composer._on_forward_began,
    events.Forward: Composer._on_forward,
    events.PassBegan: Composer._on_pass_began,
    events.Hooked: Composer._on_hooked,
    events.PassEnded: Composer._on_pass_ended,
    events.Sent: Composer._on_sent,
    events.Written: Composer._on_written,
    events.Received: Composer._on_received,
    events.Summed: Composer._on_summed,
    events.Reduced: Composer._on_reduced,
    events.Waited: Composer._on_waited,
    events.Applied: Composer._on_applied,
    events.Stepped: Composer._on_stepped,
    events.TurnAwaited: Composer._on_turn_awaited,
    events.TurnHeld: Composer._on_turn_held,
    events.Named: Composer._on_named,
    events.Planned: Composer._on_planned,
    events.Linked: Composer._on_linked,
    events.Compared: Composer._on_compared,
}
