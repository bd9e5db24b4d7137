"""A group on a virtual clock, whose links have the rate and latency that a test sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.support.fake_group import FakeGroup
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import Slice, TensorSpec
from undertow.sizing import Sizes


class Clock:
    """A clock that advances only when a group advances it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


class TimedGroup(FakeGroup):
    """A fake group whose workers contribute at the same time, and whose answers take as long as its links need."""

    def __init__(
        self,
        clock: Clock,
        *,
        size: int = 2,
        bytes_per_s: float = 1e8,
        latency_s: float = 0.001,
        others_s: float = 0.0,
        sizes: Sizes | None = None,
    ) -> None:
        super().__init__([1] * (size - 1), sizes=sizes)
        self.transfers: list[int] = []  # bytes of each timed transfer
        self.verdicts = 0  # number of times that the ranks have exchanged the duration of a transfer
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._others_s = others_s  # additional time that the other workers report
        self._probes: set[int] = set()  # keys

    def register(
        self, label: str, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0
    ) -> list[Slice]:
        slices = super().register(label, tensors, op=op, keep=keep, keys=keys)
        if tensors[0].name.startswith("probe"):
            self._probes |= {item.spec.key for item in slices}
        return slices

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        total_bytes = sum(one.source.nbytes for one in contributions if one.source is not None)
        share = (self.size - 1) / self.size
        self._clock.now_s += 2 * self._latency_s
        is_probe = contributions[0].key in self._probes
        if is_probe:
            self._clock.now_s += 2 * total_bytes * share / self._bytes_per_s
            self.transfers.append(total_bytes)
        elif contributions[0].source is not None and contributions[0].source[0]:
            self.verdicts += 1
        super().contribute(contributions)

    def answer(self, contribution: Contribution) -> None:
        super().answer(contribution)
        if contribution.key not in self._probes and contribution.target is not None:
            contribution.target += self._others_s * (self.size - 1)
