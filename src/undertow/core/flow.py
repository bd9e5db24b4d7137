"""Stages 2 to 8 of a worker: which round each key is in, and what is waited for.

In: contributions of this worker, results of the shards.
Out: what to send now, and which contribution a result answers.
A worker sends a key's next round only when it has the answer of the one before;
later contributions of that key wait here, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from undertow.core.rounds import Array, KeySpec


@dataclass(slots=True)
class Contribution:
    """One key's part in its next round.

    `source` is sent, and must stay untouched until the answer; `target` takes the
    result, and may be the same memory; without one only the end of the round is told.
    `on_result` is called once, with this object.
    """

    key: int
    source: Array | None
    target: Array | None
    present: int  # which of the slice's tensors hold a value: first here, then in the result
    on_result: Callable[[Contribution], None]
    priority: int = 0
    is_pull: bool = False  # only asks for the value that the key holds; takes part in no round
    step: int = 0  # given by the flow
    absent: bool = False  # in the answer: a worker had joined and took no part
    pieces: Sequence[Any] = ()  # in the answer, where nothing is summed: what each rank contributed


class Flow:
    """The worker's side of all its rounds.  Not thread-safe."""

    def __init__(self) -> None:
        self._specs: dict[int, KeySpec] = {}
        self._steps: dict[int, int] = {}
        # Invariant: the first of each queue is on its way, the others wait; no queue is empty.
        self._queues: dict[int, deque[Contribution]] = {}

    def add(self, specs: Iterable[KeySpec]) -> None:
        for spec in specs:
            self._specs[spec.key] = spec
            self._steps[spec.key] = 0

    def spec(self, key: int) -> KeySpec:
        return self._specs[key]

    def contribute(self, contribution: Contribution) -> Contribution | None:
        """Queue it.  Returns what to send now: itself, or None if its turn comes later."""
        queue = self._queues.get(contribution.key)
        if queue is not None:
            queue.append(contribution)
            return None
        self._queues[contribution.key] = deque([contribution])
        return self._start(contribution.key)

    def awaited(self, key: int, step: int) -> Contribution | None:
        """The contribution that a result of this key and step would answer."""
        queue = self._queues.get(key)
        return queue[0] if queue and queue[0].step == step else None

    def answer(self, key: int) -> Contribution | None:
        """The key's first contribution is answered.  Returns the next one, to be sent now."""
        queue = self._queues[key]
        queue.popleft()
        if queue:
            return self._start(key)
        del self._queues[key]
        return None

    def pending(self) -> Contribution | None:
        """Some contribution that still waits for its answer, to say what is missing."""
        return next((queue[0] for queue in self._queues.values()), None)

    def pending_at(self, shards: Container[int]) -> int | None:
        """One of these shards, if an answer of it is still to come."""
        owners = (self._specs[key].shard for key in self._queues)
        return next((shard for shard in owners if shard in shards), None)

    def step(self, key: int) -> int:
        return self._steps[key]

    def resume(self, keys: Iterable[int], step: int) -> None:
        """After a join: all workers go on together after round `step`."""
        for key in keys:
            assert key not in self._queues, f"key {key} is in the middle of round {self._steps[key]}"
            self._steps[key] = step

    def _start(self, key: int) -> Contribution:
        contribution = self._queues[key][0]
        self._steps[key] += not contribution.is_pull
        contribution.step = self._steps[key]
        return contribution
