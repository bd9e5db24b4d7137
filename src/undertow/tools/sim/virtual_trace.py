"""Trace events of a simulated run: the same as of a real run, in virtual time.

In: steps of workers and engines.  Out: the events of each rank (see `tracing.events`).
The real exchange records the engine's events.  Two differ from a real run: without an operating system, a slice counts
as written when it has arrived; and sums take no time of their own, because the engine's cost of a byte includes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from undertow.engine.core.frames import Header, Kind
from undertow.engine.core.slicing import Slice
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Plan
from undertow.plan.profile import Profile
from undertow.tools.sim.engine import Engine
from undertow.tools.sim.worker import Layer, Worker
from undertow.tools.virtual.world import Clock
from undertow.tracing import events
from undertow.tracing.recorder import Recorder


class VirtualTrace:
    """Trace events of one virtual rank."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.layers: list[str] = []
        self.tensors: list[str] = []  # by number in the layout

    def begin(self, clock: Clock, profile: Profile, plan: Plan, cluster: Cluster, slices: Sequence[Slice]) -> None:
        """Start to record, with the names and the plan that readers of the events need."""
        self.recorder.clock = lambda: clock.now_s
        self.recorder.start()
        self.layers = [layer.name for layer in profile.layers]
        self.tensors = [tensor.name for tensor in profile.tensors[::-1]]
        named = {item.spec.key: tuple(self.tensors[each.tensor] for each in item.ranges) for item in slices}
        self.recorder.record(events.Named(0.0, "the parameters", "mean", named))
        self.recorder.record(events.Planned(0.0, plan, profile, cluster))
        self.recorder.record(events.Linked(0.0, cluster.bytes_per_s))


class RecordedWorker(Worker):
    """Worker that records its trace events."""

    def __init__(
        self, clock: Clock, layers: Sequence[Layer], steps: int, pace: Callable[[int], float], trace: VirtualTrace
    ) -> None:
        super().__init__(clock, layers, steps, pace)
        self._trace = trace
        self._record = trace.recorder.record
        self._since_s = 0.0  # when the current forward or wait began

    def start(self) -> None:
        self._record(events.PassBegan(self._clock.now_s, 0, len(self.ends_s) + 1))
        super().start()

    def _computed(self, layer: int) -> None:
        now_s = self._clock.now_s
        for tensor in reversed(self._layers[layer].tensors):
            self._record(events.Hooked(now_s, now_s, self._trace.tensors[tensor]))
        super()._computed(layer)

    def _end_backward(self) -> None:
        now_s = self._clock.now_s
        self._record(events.PassEnded(now_s, 0, len(self.ends_s) + 1))
        self._record(events.ForwardBegan(now_s, 0))
        super()._end_backward()

    def _enter(self, layer: int) -> None:
        self._since_s = self._clock.now_s
        super()._enter(layer)

    def _leave(self, layer: int) -> None:
        self._record(events.Forward(self._since_s, self._clock.now_s, self._trace.layers[layer]))
        super()._leave(layer)

    def go_on(self) -> None:
        layer = self._waits_at
        if layer is not None and self.delivery.is_here(layer):
            # The wait is for all of the layer's tensors; the event names the first of them.
            own = self._layers[layer].tensors
            tensor = self._trace.tensors[own[0]] if own else ""
            self._record(events.Waited(self._since_s, self._clock.now_s, events.AT_THE_GATE, tensor))
        super().go_on()


class RecordedEngine(Engine):
    """Engine that records when frames arrive."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._recorder: Recorder = given[-1]
        self._coming_s: dict[int, deque[float]] = {}  # for each sender, when each of its expected frames begins to come

    def _arrival_at(self, peer: int) -> Callable[[float, tuple[int, Header, Any]], None]:
        target, sent_s = self.peers[peer], self._clock.now_s
        assert isinstance(target, RecordedEngine)

        def expect(arrival_s: float, frame: tuple[int, Header, Any]) -> None:
            header = frame[1]
            if header.kind is not Kind.RECEIVED:
                since_s = min(arrival_s, max(sent_s, target._last_s[self.rank]))
                target._coming_s.setdefault(self.rank, deque()).append(since_s)
                self._recorder.record(events.Written(arrival_s, peer, header.kind, header.key, header.step))
            target.expect(arrival_s, frame)

        return expect

    def _handle(self, frame: tuple[int, Header, Any]) -> None:
        if frame[1].kind is not Kind.RECEIVED:
            self._exchange.sender.note_arriving(frame[0], self._coming_s[frame[0]].popleft())
        super()._handle(frame)


def note_sum(
    traces: Sequence[VirtualTrace],
    buckets: Sequence[Sequence[int]],
    sizes_bytes: Mapping[int, int],
    bucket: int,
    since_s: float,
) -> None:
    """Record on all ranks that a ring has summed a bucket."""
    size_bytes = sum(sizes_bytes[tensor] for tensor in buckets[bucket])
    for trace in traces:
        names = tuple(trace.tensors[tensor] for tensor in buckets[bucket])
        trace.recorder.record(events.Reduced(since_s, trace.recorder.clock(), names, size_bytes))
