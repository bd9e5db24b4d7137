"""Stage 6, the shard: the keys that one process owns, and their rounds.

In: contributions, pulls, joins and departures of workers.
Out: answers, one per worker and round, as soon as the round is complete.
It never waits and sends no requests: workers get their answers without having to pull.
Invalid input (an unknown key, a second contribution) is refused with a reason and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from undertow.engine.core.frames import Header, Unexpected
from undertow.engine.core.rounds import Array, KeySpec, Round

MakeRound = Callable[[KeySpec, int, Callable[[Array], None]], Round]


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to one worker.  `array` is None if the result is empty, not wanted or already in place."""

    rank: int
    key: int
    step: int
    present: int
    absent: int
    array: Array | None


@dataclass(slots=True)
class _Open:
    """Round in progress, and the workers that want its result."""

    round: Round
    wants: bytearray  # by rank
    contributors: list[int]
    into: Array | None = None  # the local worker's memory for the result


class Shard:
    """Keys that one process owns, with their rounds and values.  Not thread-safe: only the engine thread uses it."""

    def __init__(
        self, workers: int, release: Callable[[Array], None] = lambda array: None, make_round: MakeRound = Round
    ) -> None:
        self._workers = workers
        self._release = release
        self._make_round = make_round
        self._specs: dict[int, KeySpec] = {}
        self._open: dict[int, _Open] = {}  # key -> its round in progress, which follows the last complete one
        self._done: dict[int, int] = {}  # key -> number of the last complete round
        self._values: dict[int, tuple[Array, int]] = {}  # key -> last result if it is kept: array, present
        self._absent: dict[int, frozenset[int]] = {}  # key -> workers that ran out of input
        self._divide_by_active: set[int] = set()

    def own(self, specs: Iterable[KeySpec]) -> None:
        for spec in specs:
            self._specs[spec.key] = spec
            self._done[spec.key] = 0

    def forget(self, keys: Iterable[int]) -> None:
        """Forget keys that are no longer used; none may have an open round."""
        for key in keys:
            if self._specs.pop(key, None) is not None:
                assert key not in self._open, f"key {key} is forgotten in the middle of a round"
                del self._done[key]
                self._values.pop(key, None)
                self._absent.pop(key, None)
                self._divide_by_active.discard(key)

    def spec(self, key: int) -> KeySpec:
        try:
            return self._specs[key]
        except KeyError:
            raise Unexpected(f"key {key} is not known here") from None

    def expects(self, rank: int, key: int, step: int) -> KeySpec:
        """Return the key's spec; raise `Unexpected` unless this worker may contribute to that round now."""
        if rank >= self._workers:
            raise Unexpected(f"a contribution of rank {rank}, a server, to key {key}")
        spec = self.spec(key)
        # A worker starts a round only after the answer to the previous one.
        if step != self._done[key] + 1:
            raise Unexpected(f"round {step} of key {key} from rank {rank}: {self._done[key]} rounds are done")
        opened = self._open.get(key)
        if opened is not None and opened.round.has(rank):
            raise Unexpected(f"a second contribution of rank {rank} to round {step} of key {key}")
        return spec

    def contribute(
        self, rank: int, key: int, step: int, array: Array | None, *, present: int, wants: bool
    ) -> list[Answer]:
        """Add the contribution of a worker in another process; the array belongs to the shard from now on."""
        opened = self._enter(rank, key, step)
        if wants:
            opened.wants[rank] = True
        opened.round.add(rank, array, present, is_owned=True)
        return self._finish_if_complete(key)

    def contribute_own(
        self, rank: int, key: int, step: int, array: Array | None, *, present: int, into: Array | None
    ) -> list[Answer]:
        """Add the local worker's contribution: its array is only read, and the result is copied `into` its memory."""
        opened = self._enter(rank, key, step)
        opened.into = into
        opened.round.add(rank, array, present)
        return self._finish_if_complete(key)

    def publish(self, rank: int, key: int, step: int, array: Array | None, *, present: int) -> list[Answer]:
        """Complete a round to which only this process contributes; return answers with its array to all workers."""
        assert step == self._done[key] + 1, f"round {step} of key {key} is published after round {self._done[key]}"
        self._done[key] = step
        return [Answer(other, key, step, present, 0, array) for other in range(self._workers)]

    def pull(self, rank: int, key: int, step: int) -> Answer:
        """Return an answer with a key's value; `step` is copied from the request, which it identifies."""
        self.spec(key)
        if key not in self._values:
            raise Unexpected(f"rank {rank} pulls key {key}, which has no value")
        array, present = self._values[key]
        return Answer(rank, key, step, present, 0, array)

    def join(self, rank: int, keys: Iterable[int], step: int, *, divide_by_active: bool) -> list[Answer]:
        """Continue the rounds of these keys without a worker that ran out of input after round `step`."""
        answers: list[Answer] = []
        for key in keys:
            # No round ends without this worker before its message has arrived.  If one has ended, all workers have
            # resumed together in the meantime, and the message is outdated.
            if key not in self._specs or self._done[key] > step:
                continue
            self._absent[key] = self._away(key) | {rank}
            if divide_by_active:
                self._divide_by_active.add(key)
            answers += self._finish_if_complete(key)
        return answers

    def rejoin(self, keys: Iterable[int], step: int) -> None:
        """Continue with all workers after round `step`, once all have run out of input."""
        for key in keys:
            if key in self._specs:
                self._absent.pop(key, None)
                self._divide_by_active.discard(key)
                self._done[key] = step

    def missing(self, key: int, step: int) -> list[int]:
        """Return the ranks that this round still waits for."""
        if key not in self._specs or step != self._done[key] + 1:
            return []
        opened = self._open.get(key)
        return list(range(self._workers)) if opened is None else opened.round.missing(self._away(key))

    def blocked_by(self, departed: Collection[int], spared: Collection[int] = ()) -> int | None:
        """Return one of these workers that a round waits for; None if there is none.  `spared` keys do not count."""
        workers = [rank for rank in departed if rank < self._workers]
        rounds = ((opened.round, self._away(key)) for key, opened in self._open.items() if key not in spared)
        return next((rank for one, away in rounds for rank in workers if not one.has(rank) and rank not in away), None)

    def _away(self, key: int) -> frozenset[int]:
        return self._absent.get(key, frozenset())

    def _enter(self, rank: int, key: int, step: int) -> _Open:
        spec = self.expects(rank, key, step)
        opened = self._open.get(key)
        if opened is None:
            opened = self._open[key] = _Open(
                self._make_round(spec, self._workers, self._release), bytearray(self._workers), []
            )
        opened.contributors.append(rank)
        return opened

    def _finish_if_complete(self, key: int) -> list[Answer]:
        opened = self._open.get(key)
        if opened is None or not opened.round.is_complete(self._away(key)):
            return []
        del self._open[key]
        step = self._done[key] = self._done[key] + 1
        by_active = key in self._divide_by_active
        outcome = opened.round.finish(self._away(key), divide_by_active=by_active, into=opened.into)
        if self._specs[key].keep and outcome.array is not None:
            self._values[key] = (outcome.array, outcome.present)
        return [
            Answer(rank, key, step, outcome.present, outcome.absent, outcome.array if opened.wants[rank] else None)
            for rank in sorted(opened.contributors)
        ]


def check_body(header: Header, spec: KeySpec) -> None:
    """Raise `Unexpected` if the body of this frame does not fit the key."""
    if header.length != spec.size_bytes or header.dtype is not spec.dtype:
        raise Unexpected(
            f"a {header.kind.name} of {header.length} bytes of {header.dtype.name} for key {header.key}, "
            f"which has {spec.size_bytes} of {spec.dtype.name}"
        )
