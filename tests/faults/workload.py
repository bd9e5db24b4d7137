"""Random tables of tensors, what each rank contributes to each round, and what must come out.

A contribution is a function of seed, key, step and rank, so the right result of any round can
be worked out anew, in the plainest way, from the ranks that took part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.faults.cluster import Cluster, Script
from undertow.core.dtypes import DType
from undertow.core.flow import Contribution
from undertow.core.rounds import Array, Op
from undertow.plan.slicing import Slice, TensorSpec
from undertow.runtime.waiting import Ticket

Result = tuple[Array | None, int]  # bytes, and which tensors are in them
FLOATS = [DType.FLOAT64, DType.FLOAT32, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16]


@dataclass
class Table:
    """Tensors that are summed together, step by step."""

    slices: list[Slice]
    op: Op
    keep: bool
    answers: list[int] = field(default_factory=list)  # how often each contribution was answered
    results: dict[tuple[Any, ...], Result] = field(default_factory=dict)  # worked out already


def random_tables(cluster: Cluster, *, most: int = 3) -> list[Table]:
    return [_random_table(cluster, index) for index in range(cluster.random.randint(1, most))]


def _random_table(cluster: Cluster, index: int) -> Table:
    pick = cluster.random
    op = pick.choice([Op.SUM, Op.MEAN, Op.MEAN, Op.COPY])
    kinds = {Op.SUM: [*FLOATS, DType.INT64, DType.INT32], Op.MEAN: FLOATS, Op.COPY: [*DType]}[op]
    tensors = []
    for number in range(pick.randint(1, 6)):
        dtype, elements = pick.choice(kinds), pick.choice([0, 1, 3, 17, 60])
        tensors.append(TensorSpec(f"t{index}.{number}", (elements,), dtype, elements))
    keep = pick.random() < 0.3
    return Table(cluster.register(tensors, op=op, keep=keep), op, keep)


def value(cluster: Cluster, table: Table, item: Slice, step: int, rank: int) -> Result:
    """What this rank contributes: bytes and which tensors are in them, or nothing."""
    random = np.random.default_rng([cluster.seed, item.spec.key, step, rank])
    is_first_of_kept = table.keep and step == 0 and rank == 0
    if random.random() < 0.25 and not is_first_of_kept:
        return None, 0
    present = int(random.integers(1, 1 << len(item.parts), dtype=np.uint64, endpoint=False))
    elements, dtype = item.spec.elements, item.spec.dtype
    if not dtype.is_float:
        return random.integers(0, 100, elements).astype(dtype.numpy), present
    # Sizes differ so much that another order of additions would give other bits.
    return (random.standard_normal(elements) * 10.0 ** random.integers(-3, 4, elements)).astype(dtype.numpy), present


def reference(
    cluster: Cluster, table: Table, item: Slice, step: int, ranks: Sequence[int], *, by_active: bool = False
) -> Result:
    """The result of a round in which these ranks took part."""
    question = (item.spec.key, step, tuple(ranks), by_active)
    if question not in table.results:
        values = [value(cluster, table, item, step, rank) for rank in sorted(ranks)]
        table.results[question] = _add(values, item, table.op, len(ranks) if by_active else cluster.size)
    return table.results[question]


def _add(values: list[Result], item: Slice, op: Op, divisor: int) -> Result:
    """One plain loop over the ranks."""
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


class Rank:
    """One worker's script, as a training loop would be: contribute, go on, wait."""

    def __init__(self, cluster: Cluster, rank: int, tables: list[Table]) -> None:
        self.rank = rank
        self.group = cluster.groups[rank]
        self.by_active = False
        self._cluster = cluster
        self._tables = tables
        self._tickets: list[Ticket] = []

    def train(self, first: int, end: int, everyone: list[int] | None = None) -> Script:
        """Rounds `first` to `end`; `everyone` has each rank's own end, if they are not the same."""
        pick = self._cluster.random
        ends = everyone or [end] * self._cluster.size
        for step in range(first, end):
            taking_part = [rank for rank in range(self._cluster.size) if ends[rank] > step]
            for table in pick.sample(self._tables, len(self._tables)):
                yield from self._contribute(table, step, taking_part)
            if pick.random() < 0.6:
                yield self.is_answered
            if self.group.waiters.error is not None:
                return  # as a training thread, which would raise it
        yield self.is_answered

    def pull(self, step: int) -> Script:
        """Ask for the values that are kept after the rounds up to `step`."""
        for table in (table for table in self._tables if table.keep and step):
            items = [self._pull_one(table, item, step) for item in table.slices]
            self._post(items)
            yield self.is_answered

    def is_answered(self) -> bool:
        return self.group.waiters.error is not None or all(ticket.done.is_set() for ticket in self._tickets)

    def _contribute(self, table: Table, step: int, taking_part: list[int]) -> Script:
        pick = self._cluster.random
        items = [self._push_one(table, item, step, taking_part) for item in table.slices]
        pick.shuffle(items)
        while items:
            count = pick.randint(1, len(items))
            self._post(items[:count])
            del items[:count]
            yield lambda: True

    def _post(self, items: list[Contribution]) -> None:
        ticket = Ticket(len(items))
        for item in items:
            item.on_result = _then(item.on_result, ticket.answer)
        self._tickets = [other for other in self._tickets if not other.done.is_set()] + [ticket]
        self.group.contribute(items)

    def _push_one(self, table: Table, item: Slice, step: int, taking_part: list[int]) -> Contribution:
        pick = self._cluster.random
        source, present = value(self._cluster, table, item, step, self.rank)
        target = pick.choice([source, _junk(item), _junk(item), None])
        if source is None and target is None and table.op is not Op.COPY:
            target = _junk(item)
        expected = reference(self._cluster, table, item, step, taking_part, by_active=self.by_active)
        name = f"rank {self.rank} key {item.spec.key} step {step}"
        index = len(table.answers)
        table.answers.append(0)

        def check(done: Contribution) -> None:
            table.answers[index] += 1
            self._compare(name, target, expected)
            self._cluster.check(done.present == expected[1], f"{name}: present {done.present}, expected {expected[1]}")
            is_absent = len(taking_part) < self._cluster.size
            self._cluster.check(done.absent == is_absent, f"{name}: absent is {done.absent}")

        return Contribution(item.spec.key, source, target, present, check, priority=pick.randint(0, 3))

    def _pull_one(self, table: Table, item: Slice, step: int) -> Contribution:
        ranks = range(self._cluster.size)
        results = [reference(self._cluster, table, item, earlier, ranks) for earlier in range(step)]
        expected = [result for result in results if result[0] is not None][-1]
        target = _junk(item)
        name = f"rank {self.rank} pulls key {item.spec.key} after step {step - 1}"
        index = len(table.answers)
        table.answers.append(0)

        def check(done: Contribution) -> None:
            table.answers[index] += 1
            self._compare(name, target, expected)

        return Contribution(item.spec.key, None, target, 0, check, is_pull=True)

    def _compare(self, name: str, target: Array | None, expected: Result) -> None:
        if target is not None and expected[0] is not None and target.tobytes() != expected[0].tobytes():
            self._cluster.fail(f"{name}: got {target}, expected {expected[0]}")


def _junk(item: Slice) -> Array:
    return np.full(item.spec.elements, 77).astype(item.spec.dtype.numpy)


def _then(
    first: Callable[[Contribution], None], second: Callable[[Contribution], None]
) -> Callable[[Contribution], None]:
    def both(contribution: Contribution) -> None:
        first(contribution)
        second(contribution)

    return both


def check_all_answered(cluster: Cluster, tables: list[Table]) -> None:
    for table in tables:
        cluster.check(set(table.answers) <= {1}, f"answers per contribution: {table.answers}")
