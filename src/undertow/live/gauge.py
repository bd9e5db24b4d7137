"""The gauge: adds up what a worker notes, and reads off how it is going.

In: notes, in the order in which they were made.  Out: a pulse whenever one is asked for.
Pure: it knows no clock but the times of the notes and of the reading.
A layer's time is its forward without what it waited for and without the layers inside of it, and in backward the time
from the gradient before to its own: autograd tells no more.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from undertow.live.pulse import LONGEST_NAME, Pulse, State
from undertow.trace import notes
from undertow.trace.notes import Note

# Rates are of these last seconds, and of one whole step at least.
WINDOW_S = 5.0
LONGEST_WINDOW = 600  # pulses


class _Moment(NamedTuple):
    """Where the counts stood at one pulse; the last two are those since the pulse before."""

    time_s: float
    step_ended_s: float
    steps: int
    waited_s: float
    turn_s: float
    bytes_out: int
    bytes_in: int
    waits: Mapping[str, float]
    layers: Mapping[str, float]


class Gauge:
    """Of one worker.  One thread at a time."""

    def __init__(self, *, rank: int, host: str, now_s: float) -> None:
        self._rank, self._host, self._began_s = rank, host, now_s
        self._sequence = 0
        self._steps = 0
        self._step_ended_s = now_s  # or when the first one began
        self._waited_s = self._turn_s = 0.0
        self._bytes_out = self._bytes_in = 0
        self._link_bytes_per_s = 0.0
        self._waits: defaultdict[str, float] = defaultdict(float)  # seconds for each, since the last pulse
        self._layers: defaultdict[str, float] = defaultdict(float)
        self._is_in_pass = False
        self._model: int | None = None  # whose passes are the steps
        self._spans: list[tuple[float, float]] = []  # of this forward pass, those inside of none of the others
        self._hooked_s = 0.0  # when autograd went on after the last gradient
        self._apart_s = 0.0  # what it stood still for since then
        self._moments: deque[_Moment] = deque([self._look(now_s)], maxlen=LONGEST_WINDOW)

    def take(self, noted: Sequence[Note]) -> None:
        for note in noted:
            count = _COUNTS.get(type(note))
            if count is not None:
                count(self, note)

    def read(self, now_s: float, *, standstill: tuple[str, float] | None = None, has_ended: bool = False) -> Pulse:
        """How it is going; `standstill` is what the training waits for right now, and since when."""
        stands_s = max(0.0, now_s - standstill[1]) if standstill else 0.0
        now = self._look(now_s, stands_s)
        self._moments.append(now)
        self._waits, self._layers = defaultdict(float), defaultdict(float)
        first = self._forget(now)
        steps, span_s = now.steps - first.steps, max(now.time_s - first.time_s, 1e-9)
        recent = list(self._moments)[1:]
        waits, layers = _add(moment.waits for moment in recent), _add(moment.layers for moment in recent)
        self._sequence += 1
        return Pulse(
            rank=self._rank,
            host=self._host[:LONGEST_NAME],
            sequence=self._sequence,
            uptime_s=now_s - self._began_s,
            state=self._find_state(standstill is not None, has_ended),
            stands_for=standstill[0][:LONGEST_NAME] if standstill else "",
            stands_s=stands_s,
            steps=now.steps,
            steps_per_s=_rate(first, now),
            waited_s=now.waited_s,
            wait_share=_share(now.waited_s - first.waited_s, span_s),
            waits_for=_most(waits),
            wait_ms_per_step=_each_ms(max(0.0, now.waited_s - first.waited_s), steps),
            turn_share=_share(now.turn_s - first.turn_s, span_s),
            layer=_most(layers) if steps else "",
            layer_ms_per_step=_each_ms(max(layers.values(), default=0.0), steps),
            bytes_out=now.bytes_out,
            bytes_in=now.bytes_in,
            out_bytes_per_s=(now.bytes_out - first.bytes_out) / span_s,
            in_bytes_per_s=(now.bytes_in - first.bytes_in) / span_s,
            link_bytes_per_s=self._link_bytes_per_s,
        )

    def _look(self, now_s: float, stands_s: float = 0.0) -> _Moment:
        # What is waited for now counts already, so that it does not all fall into the second in which it comes.
        waited_s = self._waited_s + stands_s
        bytes_both = self._bytes_out, self._bytes_in
        return _Moment(
            now_s, self._step_ended_s, self._steps, waited_s, self._turn_s, *bytes_both, self._waits, self._layers
        )

    def _forget(self, now: _Moment) -> _Moment:
        """Drop what is older than the window; returns where it begins."""
        moments = self._moments
        while len(moments) > 2 and moments[1].time_s <= now.time_s - WINDOW_S and moments[1].steps < now.steps:
            moments.popleft()
        return moments[0]

    def _find_state(self, stands: bool, has_ended: bool) -> State:
        if has_ended:
            return State.ENDED
        if stands:
            return State.WAITING
        return State.COMPUTING if self._model is not None or self._bytes_out else State.STARTING

    # What each kind of note adds

    def _begin_pass(self, note: notes.PassBegan) -> None:
        if self._model is None:  # the first model that trains gives the beat, as in a trace
            self._model, self._step_ended_s = note.model, note.time_s
        self._is_in_pass = True
        self._spans.clear()
        self._hooked_s, self._apart_s = note.time_s, 0.0

    def _end_pass(self, note: notes.PassEnded) -> None:
        self._is_in_pass = False
        if note.model == self._model:
            self._steps += 1
            self._step_ended_s = note.time_s

    def _hook(self, note: notes.Hooked) -> None:
        layer = notes.find_layer(note.tensor)
        if self._is_in_pass:
            self._layers[layer] += max(0.0, note.began_s - self._hooked_s - self._apart_s)
        self._hooked_s, self._apart_s = note.ended_s, 0.0

    def _forward(self, note: notes.Forward) -> None:
        inside_s = 0.0
        while self._spans and self._spans[-1][0] >= note.began_s:
            began_s, ended_s = self._spans.pop()
            inside_s += ended_s - began_s
        self._spans.append((note.began_s, note.ended_s))
        self._layers[note.layer] += max(0.0, note.ended_s - note.began_s - inside_s)

    def _wait(self, note: notes.Waited) -> None:
        self._waited_s += note.ended_s - note.began_s
        self._waits[note.tensor or note.reason] += note.ended_s - note.began_s
        self._stand(note)

    def _await_turn(self, note: notes.TurnAwaited) -> None:
        self._turn_s += note.ended_s - note.began_s
        self._stand(note)

    def _stand(self, note: notes.Waited | notes.TurnAwaited) -> None:
        """No layer computed meanwhile."""
        if self._is_in_pass:
            self._apart_s += note.ended_s - note.began_s
        else:
            self._spans.append((note.began_s, note.ended_s))

    def _send(self, note: notes.Sent) -> None:
        self._bytes_out += note.size_bytes

    def _receive(self, note: notes.Received) -> None:
        self._bytes_in += note.size_bytes

    def _link(self, note: notes.Linked) -> None:
        self._link_bytes_per_s = note.bytes_per_s


_COUNTS: dict[type[Note], Callable[[Gauge, Any], None]] = {
    notes.Forward: Gauge._forward,
    notes.PassBegan: Gauge._begin_pass,
    notes.Hooked: Gauge._hook,
    notes.PassEnded: Gauge._end_pass,
    notes.Sent: Gauge._send,
    notes.Received: Gauge._receive,
    notes.Waited: Gauge._wait,
    notes.TurnAwaited: Gauge._await_turn,
    notes.Linked: Gauge._link,
}


def _rate(first: _Moment, now: _Moment) -> float:
    """Steps per second: from the end of one step to that of another, or until now if the next is overdue."""
    steps = now.steps - first.steps
    if not steps:
        return 0.0
    span_s = max(now.step_ended_s - first.step_ended_s, 1e-9)
    overdue_s = now.time_s - now.step_ended_s - 2 * span_s / steps
    return steps / (span_s if overdue_s < 0 else now.time_s - first.step_ended_s)


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, max(0.0, part_s / whole_s))


def _each_ms(all_s: float, steps: int) -> float:
    return 1e3 * all_s / steps if steps else 0.0


def _add(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for seconds in each:
        for name, count in seconds.items():
            total[name] += count
    return total


def _most(seconds: Mapping[str, float]) -> str:
    return max(seconds, key=lambda name: seconds[name], default="")[:LONGEST_NAME]
