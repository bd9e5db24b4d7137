"""Random tables of tensors, what each rank contributes to each round, and what must come out.

A contribution is a function of seed, job, key, step and rank, so the right result of any round can be worked out
anew, in the plainest way, from the ranks that took part.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from undertow.core.dtypes import DType
from undertow.core.rounds import Array, Op
from undertow.faults.cluster import Cluster
from undertow.plan.slicing import Slice, TensorSpec

Result = tuple[Array | None, int]  # bytes, and which tensors are in them
FLOATS = [DType.FLOAT64, DType.FLOAT32, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16]
# Values differ so much in size that another order of additions would give other bits.
SCALES = np.array([1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3])


@dataclass
class Table:
    """Tensors that are summed together, step by step."""

    tensors: list[TensorSpec]
    op: Op
    keep: bool
    slices: list[Slice] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)  # how often each contribution was answered
    values: dict[tuple[int, int, int], Result] = field(default_factory=dict)  # worked out already
    results: dict[tuple[Any, ...], Result] = field(default_factory=dict)


def draw_tables(cluster: Cluster, *, most: int = 2, most_tensors: int = 4) -> list[Table]:
    """Tables that nobody knows yet."""
    pick = cluster.random
    return [_draw_table(pick, index, pick.randint(1, most_tensors)) for index in range(pick.randint(1, most))]


def make_tables(cluster: Cluster, *, most: int = 2, most_tensors: int = 4) -> list[Table]:
    """Tables that all ranks have agreed on."""
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
    """What this rank contributes: bytes and which tensors are in them, or nothing."""
    question = (item.spec.key, step, rank)
    if question not in table.values:
        table.values[question] = _make_value(cluster, table, item, step, rank)
    array, present = table.values[question]
    return None if array is None else array.copy(), present


def _make_value(cluster: Cluster, table: Table, item: Slice, step: int, rank: int) -> Result:
    pick = random.Random(f"{cluster.seed}/{cluster.job}/{item.spec.key}/{step}/{rank}")
    is_first_of_kept = table.keep and step == 0 and rank == 0
    if pick.random() < 0.25 and not is_first_of_kept:
        return None, 0
    present = pick.randrange(1, 1 << len(item.parts))
    elements, dtype = item.spec.elements, item.spec.dtype
    if not dtype.is_float:
        return (np.frombuffer(pick.randbytes(elements), np.uint8) % 100).astype(dtype.numpy), present
    sizes = SCALES[np.frombuffer(pick.randbytes(elements), np.uint8) % len(SCALES)]
    return (np.frombuffer(pick.randbytes(8 * elements), "<i8") / 2.0**61 * sizes).astype(dtype.numpy), present


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


def check_all_answered(cluster: Cluster, tables: Sequence[Table]) -> None:
    """Nobody has failed: so every contribution is answered, too."""
    for table in tables:
        cluster.check(set(table.answers) <= {1}, f"answers per contribution at the end: {table.answers}")
