"""Reductions below a reduction: over which of them a loss goes over its batch cannot be seen from one rank.

In: a node that sums or averages.  Out: what else reduces, or mixes rows, as far below as elements stay elements.
`losses` decides, because all ranks together know which dimension is the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from undertow.torch.data.graphs import (
    AVERAGING,
    ELEMENTWISE,
    FEW,
    JOINING,
    LINEAR,
    MIXING,
    REDUCING,
    STACKING,
    SUMMING,
    Node,
    children_of,
    compares_rows,
    has_plain_sizes,
    input_shapes,
    reduced_dims,
)
from undertow.torch.data.reports import Kind, Stage

_MOST = 16  # stages; a message to all ranks stays small


def find_stages(node: Node, *, is_linear: bool) -> tuple[Stage, ...]:
    """Every reduction below this one, each once.  `is_linear`: this one is a sum or mean of what is given to it."""
    found: dict[Stage, None] = {}
    for below, linear in _descend(node, is_linear):
        stage = _describe(below, linear)
        if stage is not None:
            found[stage] = None
    return tuple(found)[:_MOST]


def _descend(node: Node, is_linear: bool) -> Iterator[tuple[Node, bool]]:
    """What is below, through operations that go element by element; the others are named, not entered."""
    open_ = [(child, is_linear) for child in children_of(node)]
    seen = {child for child, _ in open_}
    while open_ and len(seen) < FEW:
        one, linear = open_.pop()
        yield one, linear
        name = one.name()
        inner = children_of(one)
        if (
            name in ELEMENTWISE
            or name.startswith(JOINING)
            or (name.startswith(REDUCING) and 0 not in reduced_dims(one))
        ):
            linear &= (name in LINEAR and len(inner) == 1) or name.startswith((SUMMING, AVERAGING))
            fresh = [child for child in inner if child not in seen]
            seen.update(fresh)
            open_ += [(child, linear) for child in fresh]


def _describe(node: Node, is_linear: bool) -> Stage | None:
    name = node.name()
    if compares_rows(node) or (name.startswith(STACKING) and not any(input_shapes(node))):
        return Stage(Kind.OTHER, (), is_first=True)
    if not name.startswith((*REDUCING, *MIXING)):
        return None
    sizes, dims = input_shapes(node)[0], reduced_dims(node)
    if not sizes:
        return None
    if not has_plain_sizes(sizes):
        return Stage(Kind.OTHER, (), is_first=0 in dims)
    kind = Kind.SUM if name.startswith(SUMMING) else Kind.MEAN if name.startswith(AVERAGING) else Kind.OTHER
    over = tuple(sizes[dim] for dim in dims)
    return Stage(kind if is_linear else Kind.OTHER, over, is_first=0 in dims, elements=math.prod(sizes))
