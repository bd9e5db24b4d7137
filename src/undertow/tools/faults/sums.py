"""Random tables, and a worker's contributions to their sums, as in a training loop: contribute, continue, wait.

A contribution is a function of seed, job, key, step and rank.  So the expected result of any round can be computed by a
plain loop over the ranks that took part; every result is compared with it bit by bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Array, Op
from undertow.engine.core.slicing import Slice, TensorSpec
from undertow.tools.faults.cluster import Cluster
from undertow.tools.faults.invariants import Answers
from undertow.tools.faults.worker import Script, Worker

Result = tuple[Array | None, int]  # bytes, and which tensors are in them
FLOATS = [DType.FLOAT64, DType.FLOAT32, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16]
# Values differ so much in magnitude that adding them in another order gives other bits.
SCALES = np.array([1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3])


@dataclass
class Table:
    """Tensors that are summed together, step by step."""

    tensors: list[TensorSpec]
    op: Op
    keep: bool
    slices: list[Slice] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)  # how often each contribution was answered
    values: dict[tuple[int, int, int], Result] = field(default_factory=dict)  # those computed already
    results: dict[tuple[Any, ...], Result] = field(default_factory=dict)


def draw_tables(cluster: Cluster, *, most: int = 2, most_tensors: int = 4) -> list[Table]:
    """Draw tables that no rank has registered yet."""
    pick = cluster.random
    return [_draw_table(pick, index, pick.randint(1, most_tensors)) for index in range(pick.randint(1, most))]


def make_tables(cluster: Cluster, *, most: int = 2, most_tensors: int = 4) -> list[Table]:
    """Draw tables that all ranks have registered."""
    tables = draw_tables(cluster, most=most, most_tensors=most_tensors)
    for table in tables:
        table.slices = cluster.register(table.tensors, op=table.op, keep=table.keep)
    return tables


def _draw_table(pick: random.Random, index: int, size: int) -> Table:
    op = pick.choice([Op.SUM, Op.MEAN, Op.MEAN, Op.COPY])
    kinds = {Op.SUM: [*FLOATS, DType.INT64, DType.INT32], Op.MEAN: FLOATS, Op.COPY: [*DType]}[op]
    tensors = []
    for number in range(size):
        dtype, elements = pick.choice(kinds), pick.choice([0, 1, 3, 17, 50])
        tensors.append(TensorSpec(f"t{index}.{number}", (elements,), dtype, elements))
    return Table(tensors, op, keep=pick.random() < 0.3)


def value(cluster: Cluster, table: Table, item: Slice, step: int, rank: int) -> Result:
    """Return this rank's contribution: bytes and which tensors are in them, or nothing."""
    name = (item.spec.key, step, rank)
    if name not in table.values:
        table.values[name] = _make_value(cluster, table, item, step, rank)
    array, present = table.values[name]
    return None if array is None else array.copy(), present


def _make_value(cluster: Cluster, table: Table, item: Slice, step: int, rank: int) -> Result:
    pick = random.Random(f"{cluster.seed}/{cluster.job}/{item.spec.key}/{step}/{rank}")
    is_first_of_kept = table.keep and step == 0 and rank == 0
    if pick.random() < 0.25 and not is_first_of_kept:
        return None, 0
    present = pick.randrange(1, 1 << len(item.ranges))
    elements, dtype = item.spec.elements, item.spec.dtype
    if not dtype.is_float:
        return (np.frombuffer(pick.randbytes(elements), np.uint8) % 100).astype(dtype.numpy), present
    sizes = SCALES[np.frombuffer(pick.randbytes(elements), np.uint8) % len(SCALES)]
    return (np.frombuffer(pick.randbytes(8 * elements), "<i8") / 2.0**61 * sizes).astype(dtype.numpy), present


def reference(
    cluster: Cluster, table: Table, item: Slice, step: int, ranks: Sequence[int], *, by_active: bool = False
) -> Result:
    """Return the result of a round in which these ranks took part."""
    name = (item.spec.key, step, tuple(ranks), by_active)
    if name not in table.results:
        values = [value(cluster, table, item, step, rank) for rank in sorted(ranks)]
        table.results[name] = _add(values, item, table.op, len(ranks) if by_active else cluster.size)
    return table.results[name]


def _add(values: list[Result], item: Slice, op: Op, divisor: int) -> Result:
    """Add in a plain loop over the ranks."""
    total, all_present = None, 0
    for array, present in values:
        all_present |= present
        if array is not None and (total is None or op is not Op.COPY):
            wide = array.astype(item.spec.dtype.accumulator)
            total = wide if total is None else total + wide
    if total is None:
        return None, 0
    if op is Op.MEAN:
        total = total / total.dtype.type(divisor)
    return total.astype(item.spec.dtype.numpy), all_present


def check_all_done(cluster: Cluster, tables: Sequence[Table]) -> None:
    """Check that every rank has finished its training, and that every contribution is answered once."""
    for worker in cluster.workers:
        cluster.check(worker.is_done, f"rank {worker.rank} ended with {worker.failure!r}")
    for table in tables:
        cluster.check(set(table.answers) <= {1}, f"answers per contribution at the end: {table.answers}")


class Contributor:
    """Contributions of one worker, and the answers that it waits for."""

    def __init__(self, cluster: Cluster, rank: int) -> None:
        self.cluster = cluster
        self.rank = rank
        self.worker: Worker = cluster.workers[rank]
        self._open: list[Answers] = []

    def wait(self) -> Script:
        """Wait until all contributions are answered."""
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


class Summer(Contributor):
    """Contributions of one worker to tables that are summed."""

    def __init__(self, cluster: Cluster, rank: int, tables: list[Table]) -> None:
        super().__init__(cluster, rank)
        self.by_active = False
        self._tables = tables

    def train(self, first: int, end: int, ends: list[int] | None = None) -> Script:
        """Train rounds `first` to `end`; `ends` has the end of every rank if they differ."""
        pick = self.cluster.random
        ends = ends or [end] * self.cluster.size
        for step in range(first, end):
            taking_part = [rank for rank in range(self.cluster.size) if ends[rank] > step]
            waits = pick.random() < 0.6
            for table in pick.sample(self._tables, len(self._tables)):
                yield from self._contribute(table, step, taking_part, waits)
            if waits:
                yield from self.wait()
        yield from self.wait()

    def contribute(self, step: int) -> Script:
        """Contribute to one round of every table, in which all ranks take part, without waiting for results."""
        for table in self.cluster.random.sample(self._tables, len(self._tables)):
            yield from self._contribute(table, step, list(range(self.cluster.size)), waits=False)

    def pull(self, step: int) -> Script:
        """Pull the values that are kept after the rounds up to `step`."""
        for table in (table for table in self._tables if table.keep and step):
            self.post([self._pull_one(table, item, step) for item in table.slices], "pulls")
            yield from self.wait()

    def _contribute(self, table: Table, step: int, taking_part: list[int], waits: bool) -> Script:
        pick = self.cluster.random
        items = [self._push_one(table, item, step, taking_part) for item in table.slices]
        pick.shuffle(items)
        while items:
            count = pick.randint(1, len(items))
            # Bytes may become ready late only in a step that is waited for: the next step must not overtake it.
            is_late = waits and pick.random() < 0.2
            self.post(items[:count], f"slices of step {step}", _ready_after(pick.randint(1, 3)) if is_late else None)
            del items[:count]
            yield from self.worker.pause()

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


def _ready_after(polls: int) -> Callable[[], bool]:
    """Return a check that holds after this many calls, like that of a copy from a device."""
    left = iter(range(polls))
    return lambda: next(left, None) is None


def _junk(item: Slice) -> Array:
    return np.full(item.spec.elements, 77).astype(item.spec.dtype.numpy)
