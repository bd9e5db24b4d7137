"""Stage 4, the flow: the current round of each key, and the contributions that wait for an answer.

In: this worker's contributions, answers from the keys' owners.
Out: the contribution to send now, and the contribution that an answer belongs to.
A worker contributes to a key's next round only after the answer to the previous round;
later contributions to that key wait here, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from undertow.engine.core.rounds import Array, KeySpec


@dataclass(slots=True)
class Contribution:
    """Contribution of one worker to the next round of one key.

    `source` is sent and must stay untouched until the answer.  `target` receives the result and may be the same
    memory; without a target, the answer only states that the round is done.  `on_result` is called once, with this
    object.
    """

    key: int
    source: Array | None
    target: Array | None
    present: int  # bits of the slice's tensors that hold a value; replaced by those of the result
    on_result: Callable[[Contribution], None]
    priority: int = 0
    is_pull: bool = False  # only requests the key's value; contributes to no round
    step: int = 0  # set by the flow
    absent: bool = False  # set by the answer: a worker had run out of input and did not contribute
    gathered: Sequence[Any] = ()  # set by the answer of a gathered round: every rank's bytes, in rank order


class Flow:
    """Rounds of all keys, as one worker sees them.  Not thread-safe."""

    def __init__(self) -> None:
        self._specs: dict[int, KeySpec] = {}
        self._steps: dict[int, int] = {}
        self._sent: dict[int, Contribution] = {}  # key -> the contribution that waits for its answer
        self._waiting: dict[int, deque[Contribution]] = {}  # key -> later contributions; no deque is empty

    def add(self, specs: Iterable[KeySpec]) -> None:
        for spec in specs:
            self._specs[spec.key] = spec
            self._steps[spec.key] = 0

    def knows(self, key: int) -> bool:
        return key in self._specs

    def uses(self, keys: range) -> bool:
        """Whether a contribution to one of these keys is unanswered."""
        return any(key in keys for key in self._sent)  # a contribution waits only behind one that is sent

    def forget(self, keys: Iterable[int]) -> None:
        """Forget keys that are no longer used."""
        for key in keys:
            self._specs.pop(key, None)
            self._steps.pop(key, None)

    def spec(self, key: int) -> KeySpec:
        return self._specs[key]

    def contribute(self, contribution: Contribution) -> Contribution | None:
        """Queue a contribution; return it if it should be sent now, None if it has to wait."""
        if contribution.key in self._sent:
            self._waiting.setdefault(contribution.key, deque()).append(contribution)
            return None
        return self._start(contribution)

    def awaited(self, key: int, step: int) -> Contribution | None:
        """Return the contribution that waits for the result of this key and step, if any."""
        sent = self._sent.get(key)
        return sent if sent is not None and sent.step == step else None

    def answer(self, key: int) -> Contribution | None:
        """Note the answer to a key's sent contribution; return the next contribution to send, if any."""
        del self._sent[key]
        waiting = self._waiting.get(key)
        if waiting is None:
            return None
        following = waiting.popleft()
        if not waiting:
            del self._waiting[key]
        return self._start(following)

    def pending(self) -> Contribution | None:
        """Return any contribution that still waits for its answer, for messages."""
        return next(iter(self._sent.values()), None)

    @property
    def waiting(self) -> list[int]:
        """Sorted keys with contributions that are not sent yet."""
        return sorted(self._waiting)

    def blocked_by(self, ranks: Container[int]) -> int | None:
        """Return one of these ranks that still has to answer a contribution; None if there is none."""
        owners = (self._specs[key].owner for key in self._sent)
        return next((owner for owner in owners if owner in ranks), None)

    def step(self, key: int) -> int:
        """Return the number of the key's latest round; 0 if the key is no longer known."""
        return self._steps.get(key, 0)

    def resume(self, keys: Iterable[int], step: int) -> None:
        """Continue after round `step`, as all workers do once all have run out of input."""
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
