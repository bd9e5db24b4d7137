"""One worker's part in sums, as a training loop would have it: contribute, go on, wait.

Every result is compared, when it comes, with the plain sum in rank order, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from undertow.core.flow import Contribution
from undertow.core.rounds import Array, Op
from undertow.faults.cluster import Cluster
from undertow.faults.invariants import Answers
from undertow.faults.tables import Result, Table, reference, value
from undertow.faults.worker import MOMENT, Script, Worker
from undertow.plan.slicing import Slice


class Asker:
    """What all kinds of contributions have in common: answers that are counted and waited for."""

    def __init__(self, cluster: Cluster, rank: int) -> None:
        self.cluster = cluster
        self.rank = rank
        self.worker: Worker = cluster.workers[rank]
        self._open: list[Answers] = []

    def wait(self) -> Script:
        """Until everything is answered."""
        yield from self.worker.until("its answers", lambda: all(answers.ticket.is_done for answers in self._open))

    def post(self, items: Sequence[Contribution], name: str, is_ready: Callable[[], bool] | None = None) -> None:
        answers = Answers(f"{name} of rank {self.rank}", len(items))
        for item in items:
            item.on_result = self._count(item.on_result, answers)
        self.cluster.invariants.watch(answers)
        self._open = [other for other in self._open if not other.ticket.is_done] + [answers]
        self.worker.contribute(items, is_ready)

    def _count(self, look: Callable[[Contribution], None], answers: Answers) -> Callable[[Contribution], None]:
        count = 0

        def on_result(item: Contribution) -> None:
            nonlocal count
            count += 1
            if count > 1:
                self.cluster.fail(f"rank {self.rank}: key {item.key} round {item.step} is answered {count} times")
            answers.left -= 1
            look(item)
            answers.ticket.answer(item)

        return on_result


class Summer(Asker):
    def __init__(self, cluster: Cluster, rank: int, tables: list[Table]) -> None:
        super().__init__(cluster, rank)
        self.by_active = False
        self._tables = tables

    def train(self, first: int, end: int, everyone: list[int] | None = None) -> Script:
        """Rounds `first` to `end`; `everyone` has each rank's own end, if they are not the same."""
        pick = self.cluster.random
        ends = everyone or [end] * self.cluster.size
        for step in range(first, end):
            taking_part = [rank for rank in range(self.cluster.size) if ends[rank] > step]
            waits = pick.random() < 0.6
            for table in pick.sample(self._tables, len(self._tables)):
                yield from self._contribute(table, step, taking_part, waits)
            if waits:
                yield from self.wait()
        yield from self.wait()

    def contribute(self, step: int) -> Script:
        """One round of every table, of all ranks, whose results are not waited for."""
        for table in self.cluster.random.sample(self._tables, len(self._tables)):
            yield from self._contribute(table, step, list(range(self.cluster.size)), waits=False)

    def pull(self, step: int) -> Script:
        """Ask for the values that are kept after the rounds up to `step`."""
        for table in (table for table in self._tables if table.keep and step):
            self.post([self._pull_one(table, item, step) for item in table.slices], "pulls")
            yield from self.wait()

    def _contribute(self, table: Table, step: int, taking_part: list[int], waits: bool) -> Script:
        pick = self.cluster.random
        items = [self._push_one(table, item, step, taking_part) for item in table.slices]
        pick.shuffle(items)
        while items:
            count = pick.randint(1, len(items))
            # Only who waits for a step may let its bytes come late: the next step must not overtake it.
            is_late = waits and pick.random() < 0.2
            self.post(items[:count], f"slices of step {step}", _come_late(pick.randint(1, 3)) if is_late else None)
            del items[:count]
            yield from self.worker.until(*_now)

    def _push_one(self, table: Table, item: Slice, step: int, taking_part: list[int]) -> Contribution:
        pick = self.cluster.random
        source, present = value(self.cluster, table, item, step, self.rank)
        target = pick.choice([source, _junk(item), _junk(item), None])
        if source is None and target is None and table.op is not Op.COPY:
            target = _junk(item)
        expected = reference(self.cluster, table, item, step, taking_part, by_active=self.by_active)
        name = f"rank {self.rank} key {item.spec.key} step {step}"
        index = len(table.answers)
        table.answers.append(0)

        def look(done: Contribution) -> None:
            table.answers[index] += 1
            self._compare(name, target, expected)
            is_absent = len(taking_part) < self.cluster.size
            if done.present != expected[1] or done.absent != is_absent:
                self.cluster.fail(f"{name}: present {done.present}, absent {done.absent}, expected {expected[1]}")

        return Contribution(item.spec.key, source, target, present, look, priority=pick.randint(0, 3))

    def _pull_one(self, table: Table, item: Slice, step: int) -> Contribution:
        ranks = range(self.cluster.size)
        results = [reference(self.cluster, table, item, earlier, ranks) for earlier in range(step)]
        expected = [result for result in results if result[0] is not None][-1]
        target = _junk(item)
        name = f"rank {self.rank} pulls key {item.spec.key} after step {step - 1}"
        index = len(table.answers)
        table.answers.append(0)

        def look(done: Contribution) -> None:
            table.answers[index] += 1
            self._compare(name, target, expected)

        return Contribution(item.spec.key, None, target, 0, look, is_pull=True)

    def _compare(self, name: str, target: Array | None, expected: Result) -> None:
        if target is not None and expected[0] is not None and target.tobytes() != expected[0].tobytes():
            self.cluster.fail(f"sum: {name}: got {target}, expected {expected[0]}")


_now = (MOMENT.what, MOMENT.is_over)


def _come_late(polls: int) -> Callable[[], bool]:
    """As a copy from a device, which is ready when it was asked for so often."""
    left = iter(range(polls))
    return lambda: next(left, None) is None


def _junk(item: Slice) -> Array:
    return np.full(item.spec.elements, 77).astype(item.spec.dtype.numpy)
