"""A simulated run, written down as a real one would be: the same notes, in virtual time.

In: workers and engines that go through a step.  Out: the notes of each rank; see `trace`.
The engine's own notes are made by the real exchange.  What differs: no operating system is in between, so a slice is
written when it has arrived; sums take no time of their own, because the engine's cost of a byte includes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from undertow.core.frames import Header, Kind
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Plan
from undertow.plan.profile import Profile
from undertow.plan.slicing import Slice
from undertow.sim.clock import Clock
from undertow.sim.engine import Engine
from undertow.sim.worker import Layer, Worker
from undertow.trace import notes
from undertow.trace.recorder import Recorder


class Diary:
    """Of one rank."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.layers: list[str] = []
        self.tensors: list[str] = []  # by their numbers in the layout

    def begin(self, clock: Clock, profile: Profile, plan: Plan, cluster: Cluster, slices: Sequence[Slice]) -> None:
        """What the notes to come mean."""
        self.recorder.clock = lambda: clock.now_s
        self.recorder.start()
        self.layers = [layer.name for layer in profile.layers]
        self.tensors = [tensor.name for tensor in profile.tensors[::-1]]
        named = {item.spec.key: tuple(self.tensors[part.tensor] for part in item.parts) for item in slices}
        self.recorder.note(notes.Named(0.0, "the parameters", "mean", named))
        self.recorder.note(notes.Planned(0.0, plan, profile, cluster))
        self.recorder.note(notes.Linked(0.0, cluster.bytes_per_s))


class RecordedWorker(Worker):
    def __init__(
        self, clock: Clock, layers: Sequence[Layer], steps: int, pace: Callable[[int], float], diary: Diary
    ) -> None:
        super().__init__(clock, layers, steps, pace)
        self._diary = diary
        self._note = diary.recorder.note
        self._since_s = 0.0  # when the forward or the wait that goes on began

    def start(self) -> None:
        self._note(notes.PassBegan(self._clock.now_s, 0, len(self.ends_s) + 1))
        super().start()

    def _computed(self, layer: int) -> None:
        now_s = self._clock.now_s
        for tensor in reversed(self._layers[layer].tensors):
            self._note(notes.Hooked(now_s, now_s, self._diary.tensors[tensor]))
        super()._computed(layer)

    def _end_backward(self) -> None:
        now_s = self._clock.now_s
        self._note(notes.PassEnded(now_s, 0, len(self.ends_s) + 1))
        self._note(notes.ForwardBegan(now_s, 0))
        super()._end_backward()

    def _enter(self, layer: int) -> None:
        self._since_s = self._clock.now_s
        super()._enter(layer)

    def _leave(self, layer: int) -> None:
        self._note(notes.Forward(self._since_s, self._clock.now_s, self._diary.layers[layer]))
        super()._leave(layer)

    def go_on(self) -> None:
        layer = self._waits_at
        if layer is not None and self.delivery.is_here(layer):
            # Whose result it was that came last is not told: all of a layer's are needed.
            own = self._layers[layer].tensors
            tensor = self._diary.tensors[own[0]] if own else ""
            self._note(notes.Waited(self._since_s, self._clock.now_s, notes.AT_THE_GATE, tensor))
        super().go_on()


class RecordedEngine(Engine):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._recorder: Recorder = given[-1]
        self._coming_s: dict[int, deque[float]] = {}  # of each sender, when its frames on the way began to come

    def _arrival_at(self, peer: int) -> Callable[[float, tuple[int, Header, Any]], None]:
        target, sent_s = self.peers[peer], self._clock.now_s
        assert isinstance(target, RecordedEngine)

        def expect(arrival_s: float, frame: tuple[int, Header, Any]) -> None:
            header = frame[1]
            if header.kind is not Kind.RECEIVED:
                since_s = min(arrival_s, max(sent_s, target._last_s[self.rank]))
                target._coming_s.setdefault(self.rank, deque()).append(since_s)
                self._recorder.note(notes.Written(arrival_s, peer, header.kind, header.key, header.step))
            target.expect(arrival_s, frame)

        return expect

    def _handle(self, frame: tuple[int, Header, Any]) -> None:
        if frame[1].kind is not Kind.RECEIVED:
            self._exchange.note_coming(frame[0], self._coming_s[frame[0]].popleft())
        super()._handle(frame)


def note_sum(
    diaries: Sequence[Diary],
    buckets: Sequence[Sequence[int]],
    sizes_bytes: Mapping[int, int],
    bucket: int,
    since_s: float,
) -> None:
    """A ring has summed a bucket, on all ranks."""
    size_bytes = sum(sizes_bytes[tensor] for tensor in buckets[bucket])
    for diary in diaries:
        names = tuple(diary.tensors[tensor] for tensor in buckets[bucket])
        diary.recorder.note(notes.Reduced(since_s, diary.recorder.clock(), names, size_bytes))
