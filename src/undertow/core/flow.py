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
        self._sent: dict[int, Contribution] = {}  # of each key the one that is on its way
        self._waiting: dict[int, deque[Contribution]] = {}  # and those after it; none is empty

    def add(self, specs: Iterable[KeySpec]) -> None:
        for spec in specs:
            self._specs[spec.key] = spec
            self._steps[spec.key] = 0

    def knows(self, key: int) -> bool:
        return key in self._specs

    def uses(self, keys: range) -> bool:
        """Whether a contribution to one of these is on its way, or waits."""
        return any(key in keys for key in self._sent)  # those that wait come after one that is sent

    def forget(self, keys: Iterable[int]) -> None:
        """These are used no more."""
        for key in keys:
            self._specs.pop(key, None)
            self._steps.pop(key, None)

    def spec(self, key: int) -> KeySpec:
        return self._specs[key]

    def contribute(self, contribution: Contribution) -> Contribution | None:
        """Queue it.  Returns what to send now: itself, or None if its turn comes later."""
        if contribution.key in self._sent:
            self._waiting.setdefault(contribution.key, deque()).append(contribution)
            return None
        return self._start(contribution)

    def awaited(self, key: int, step: int) -> Contribution | None:
        """The contribution that a result of this key and step would answer."""
        sent = self._sent.get(key)
        return sent if sent is not None and sent.step == step else None

    def answer(self, key: int) -> Contribution | None:
        """The key's first contribution is answered.  Returns the next one, to be sent now."""
        del self._sent[key]
        waiting = self._waiting.get(key)
        if waiting is None:
            return None
        following = waiting.popleft()
        if not waiting:
            del self._waiting[key]
        return self._start(following)

    def pending(self) -> Contribution | None:
        """Some contribution that still waits for its answer, to say what is missing."""
        return next(iter(self._sent.values()), None)

    @property
    def waiting(self) -> list[int]:
        """The keys with contributions that are not sent yet, in order."""
        return sorted(self._waiting)

    def pending_at(self, shards: Container[int]) -> int | None:
        """One of these shards, if an answer of it is still to come."""
        owners = (self._specs[key].shard for key in self._sent)
        return next((shard for shard in owners if shard in shards), None)

    def step(self, key: int) -> int:
        """The key's last round; 0 if it is not known any more."""
        return self._steps.get(key, 0)

    def resume(self, keys: Iterable[int], step: int) -> None:
        """After a join: all workers go on together after round `step`."""
        for key in keys:
            assert key not in self._sent, f"key {key} is in the middle of round {self._steps[key]}"
            if key in self._specs:
                self._steps[key] = step

    def _start(self, contribution: Contribution) -> Contribution:
        key = contribution.key
        self._steps[key] += not contribution.is_pull
        contribution.step = self._steps[key]
        self._sent[key] = contribution
        return contribution
