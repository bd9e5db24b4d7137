"""Adds up the trace events of a worker and reports its speed, waits and slowest layer.

In: trace events, in their order.  Out: a status report on request.
Pure: the time comes from the events and from the caller.
The time of a layer is that of its forward pass, without waits and inner layers, plus the time in backward from the
previous gradient to its own.  Autograd gives no finer times.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from undertow.observe.meter.status_report import LONGEST_NAME, Activity, StatusReport
from undertow.tracing import events
from undertow.tracing.events import TraceEvent

# Rates cover the last seconds, and at least one whole step.
WINDOW_S = 5.0
LONGEST_WINDOW = 600  # reports


class _Moment(NamedTuple):
    """Counts at the time of one report; `waits` and `layers` are seconds since the previous report."""

    time_s: float
    step_ended_s: float
    steps: int
    waited_s: float
    turn_s: float
    bytes_out: int
    bytes_in: int
    waits: Mapping[str, float]
    layers: Mapping[str, float]


class StepMeter:
    """Counters of one worker, and their values at its last reports.  Used by one thread at a time."""

    def __init__(self, *, rank: int, host: str, now_s: float) -> None:
        self._rank, self._host, self._began_s = rank, host, now_s
        self._sequence = 0
        self._steps = 0
        self._step_ended_s = now_s  # before the first step has ended: when it began
        self._waited_s = self._turn_s = 0.0
        self._bytes_out = self._bytes_in = 0
        self._link_bytes_per_s = 0.0
        self._waits: defaultdict[str, float] = defaultdict(float)  # seconds by cause, since the last report
        self._layers: defaultdict[str, float] = defaultdict(float)
        self._is_in_pass = False
        self._model: int | None = None  # the model whose passes are the steps
        self._spans: list[tuple[float, float]] = []  # outermost spans of this forward pass
        self._hooked_s = 0.0  # when autograd continued after the last gradient
        self._paused_s = 0.0  # seconds of waiting since then
        self._moments: deque[_Moment] = deque([self._make_moment(now_s)], maxlen=LONGEST_WINDOW)

    def take(self, taken: Sequence[TraceEvent]) -> None:
        for event in taken:
            count = _COUNTS.get(type(event))
            if count is not None:
                count(self, event)

    def read(
        self, now_s: float, *, standstill: tuple[str, float] | None = None, has_ended: bool = False
    ) -> StatusReport:
        """Return a report; `standstill` is what training waits for at this moment, and since when."""
        stands_s = max(0.0, now_s - standstill[1]) if standstill else 0.0
        now = self._make_moment(now_s, stands_s)
        self._moments.append(now)
        self._waits, self._layers = defaultdict(float), defaultdict(float)
        first = self._drop_old(now)
        steps, span_s = now.steps - first.steps, max(now.time_s - first.time_s, 1e-9)
        recent = list(self._moments)[1:]
        waits, layers = _add_up(moment.waits for moment in recent), _add_up(moment.layers for moment in recent)
        self._sequence += 1
        return StatusReport(
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
            waits_for=_find_longest(waits),
            wait_ms_per_step=_ms_per_step(max(0.0, now.waited_s - first.waited_s), steps),
            turn_share=_share(now.turn_s - first.turn_s, span_s),
            layer=_find_longest(layers) if steps else "",
            layer_ms_per_step=_ms_per_step(max(layers.values(), default=0.0), steps),
            bytes_out=now.bytes_out,
            bytes_in=now.bytes_in,
            out_bytes_per_s=(now.bytes_out - first.bytes_out) / span_s,
            in_bytes_per_s=(now.bytes_in - first.bytes_in) / span_s,
            link_bytes_per_s=self._link_bytes_per_s,
        )

    def _make_moment(self, now_s: float, stands_s: float = 0.0) -> _Moment:
        # A wait counts while it lasts; otherwise all of it would count in the second in which it ends.
        waited_s = self._waited_s + stands_s
        bytes_both = self._bytes_out, self._bytes_in
        return _Moment(
            now_s, self._step_ended_s, self._steps, waited_s, self._turn_s, *bytes_both, self._waits, self._layers
        )

    def _drop_old(self, now: _Moment) -> _Moment:
        """Drop moments older than the window, and return the first moment of the window."""
        moments = self._moments
        while len(moments) > 2 and moments[1].time_s <= now.time_s - WINDOW_S and moments[1].steps < now.steps:
            moments.popleft()
        return moments[0]

    def _find_state(self, is_waiting: bool, has_ended: bool) -> Activity:
        if has_ended:
            return Activity.ENDED
        if is_waiting:
            return Activity.WAITING
        return Activity.COMPUTING if self._model is not None or self._bytes_out else Activity.STARTING

    # Handlers of each type of event

    def _begin_pass(self, event: events.PassBegan) -> None:
        if self._model is None:  # the passes of the first model that trains are the steps
            self._model, self._step_ended_s = event.model, event.time_s
        self._is_in_pass = True
        self._spans.clear()
        self._hooked_s, self._paused_s = event.time_s, 0.0

    def _end_pass(self, event: events.PassEnded) -> None:
        self._is_in_pass = False
        if event.model == self._model:
            self._steps += 1
            self._step_ended_s = event.time_s

    def _hook(self, event: events.Hooked) -> None:
        layer = events.find_layer(event.tensor)
        if self._is_in_pass:
            self._layers[layer] += max(0.0, event.began_s - self._hooked_s - self._paused_s)
        self._hooked_s, self._paused_s = event.ended_s, 0.0

    def _forward(self, event: events.Forward) -> None:
        inside_s = 0.0
        while self._spans and self._spans[-1][0] >= event.began_s:
            began_s, ended_s = self._spans.pop()
            inside_s += ended_s - began_s
        self._spans.append((event.began_s, event.ended_s))
        self._layers[event.layer] += max(0.0, event.ended_s - event.began_s - inside_s)

    def _wait(self, event: events.Waited) -> None:
        self._waited_s += event.ended_s - event.began_s
        self._waits[event.tensor or event.reason] += event.ended_s - event.began_s
        self._pause(event)

    def _await_turn(self, event: events.TurnAwaited) -> None:
        self._turn_s += event.ended_s - event.began_s
        self._pause(event)

    def _pause(self, event: events.Waited | events.TurnAwaited) -> None:
        """Exclude this time, in which no layer computed, from the layers' times."""
        if self._is_in_pass:
            self._paused_s += event.ended_s - event.began_s
        else:
            self._spans.append((event.began_s, event.ended_s))

    def _send(self, event: events.Sent) -> None:
        self._bytes_out += event.size_bytes

    def _receive(self, event: events.Received) -> None:
        self._bytes_in += event.size_bytes

    def _link(self, event: events.Linked) -> None:
        self._link_bytes_per_s = event.bytes_per_s


_COUNTS: dict[type[TraceEvent], Callable[[StepMeter, Any], None]] = {
    events.Forward: StepMeter._forward,
    events.PassBegan: StepMeter._begin_pass,
    events.Hooked: StepMeter._hook,
    events.PassEnded: StepMeter._end_pass,
    events.Sent: StepMeter._send,
    events.Received: StepMeter._receive,
    events.Waited: StepMeter._wait,
    events.TurnAwaited: StepMeter._await_turn,
    events.Linked: StepMeter._link,
}


def _rate(first: _Moment, now: _Moment) -> float:
    """Return steps per second between the ends of two steps, or until now if the next step is overdue."""
    steps = now.steps - first.steps
    if not steps:
        return 0.0
    span_s = max(now.step_ended_s - first.step_ended_s, 1e-9)
    overdue_s = now.time_s - now.step_ended_s - 2 * span_s / steps
    return steps / (span_s if overdue_s < 0 else now.time_s - first.step_ended_s)


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, max(0.0, part_s / whole_s))


def _ms_per_step(total_s: float, steps: int) -> float:
    return 1e3 * total_s / steps if steps else 0.0


def _add_up(moments: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for seconds in moments:
        for name, time_s in seconds.items():
            total[name] += time_s
    return total


def _find_longest(seconds: Mapping[str, float]) -> str:
    return max(seconds, key=lambda name: seconds[name], default="")[:LONGEST_NAME]
