"""Finds the terms that a loss adds up in its autograd graph.

In: the tensors that are passed to backward.  Out: the nodes whose gradients must be weighed, with the facts about each
that `losses` needs.  Nothing is computed, and the graph is not changed.

The search follows additions, signs, views and scalings from the loss down.  A node where it ends is a term: one of
torch's loss functions, or a sum or mean of the script's own.  Terms that contain only parameters, such as weight decay,
are the same on all ranks and are left out.

A term lists the reductions, and the operations that mix rows, below it, as far as the operations in between are
element-wise: only all ranks together can tell which dimension is the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from undertow.sync.batches.reports import Reduction, ReductionKind, Term, TermScales
from undertow.torch.data.graphs import (
    ADDING,
    AVERAGING,
    ELEMENTWISE,
    JOINING,
    LINEAR,
    MIXING,
    MOST_NODES,
    PASSING,
    REDUCING,
    SCALING,
    STACKING,
    SUMMING,
    Node,
    children_of,
    compares_rows,
    has_fixed_sizes,
    input_shapes,
    is_of_parameters,
    reduced_dims,
)

_COUNTING = {"NllLossBackward0", "NllLoss2DBackward0"}
_MEAN, _SUM = 1, 2  # torch's numbers for reductions
_MOST_REDUCTIONS = 16  # per term, which keeps the message to all ranks small


@dataclass(frozen=True)
class FoundTerm:
    """A term, and the node that its gradient reaches first."""

    node: Node
    term: Term


def find_terms(tensors: Iterable[Any]) -> list[FoundTerm]:
    """Return all terms of these losses, in the order of the graph."""
    found: dict[Node, Term] = {}
    for tensor in tensors:
        node = _find_node(tensor)
        if node is None:
            continue
        is_scalar = isinstance(tensor, torch.Tensor) and tensor.numel() == 1
        pairs = _walk(node) if is_scalar else [(node, Term(ReductionKind.OTHER))]
        for one, term in pairs:
            # A node that is used twice with different scales has no single weight.
            found[one] = term if found.get(one, term) == term else Term(ReductionKind.OTHER)
    return [FoundTerm(node, term) for node, term in found.items()]


def find_nodes(tensors: Iterable[Any]) -> list[Node]:
    """Return the nodes where a backward of these tensors starts."""
    return [node for node in map(_find_node, tensors) if node is not None]


def _find_node(tensor: Any) -> Node | None:
    return tensor.grad_fn if isinstance(tensor, torch.Tensor) else getattr(tensor, "node", None)


def _walk(root: Node) -> Iterator[tuple[Node, Term]]:
    open_: list[tuple[Node, TermScales]] = [(root, TermScales())]
    while open_:
        node, scales = open_.pop()
        name, inner = node.name(), children_of(node)
        if name in ADDING or name in PASSING or _joins_numbers(node):
            open_ += [(child, scales) for child in reversed(inner)]
        elif name in SCALING and (scale := _read_scale(node)) is not None:
            open_.append((inner[0], _add_scale(scales, scale, is_divisor=name.startswith("Div"))))
        elif not is_of_parameters(node):
            yield node, _describe(node, scales)


def _joins_numbers(node: Node) -> bool:
    """Return whether this node sums or averages scalars, each of which is a term of its own."""
    name = node.name()
    if name.startswith(STACKING):
        return not any(input_shapes(node))
    if not name.startswith((SUMMING, AVERAGING)):
        return False
    [inner] = children_of(node)
    return input_shapes(node) == [()] or (inner.name().startswith(STACKING) and not any(input_shapes(inner)))


def _add_scale(scales: TermScales, scale: torch.Tensor | float, *, is_divisor: bool) -> TermScales:
    number = abs(float(scale))
    if is_divisor:
        return TermScales((*scales.divisors, number), scales.factors, (*scales.computed, _is_computed(scale)))
    return TermScales(scales.divisors, (*scales.factors, 1 / number if number else math.inf), scales.computed)


def _is_computed(scale: torch.Tensor | float) -> bool:
    """Return whether the script divides by a tensor, which, unlike a Python number, takes part in type promotion."""
    least = torch.int8 if isinstance(scale, torch.Tensor) and not scale.is_floating_point() else torch.float16
    return isinstance(scale, torch.Tensor) and torch.result_type(scale, torch.empty((), dtype=least)) != least


def _read_scale(node: Node) -> torch.Tensor | float | None:
    """Return the number by which this node divides or multiplies; None if it is not a constant for autograd."""
    saved = [getattr(node, name, None) for name in ("_saved_other", "_saved_self")]
    numbers = [one for one in saved if one is not None]
    is_inverse = node.name() == "DivBackward0" and node.next_functions[0][0] is None
    if len(children_of(node)) != 1 or len(numbers) != 1 or is_inverse:
        return None
    scale: torch.Tensor | float = numbers[0]
    return scale


def _describe(node: Node, scales: TermScales) -> Term:
    name = node.name()
    if name.startswith((SUMMING, AVERAGING)):
        kind = ReductionKind.MEAN if name.startswith(AVERAGING) else ReductionKind.SUM
        sizes = input_shapes(node)[0]
        if not has_fixed_sizes(sizes):
            return Term(ReductionKind.OTHER)
        return Term(kind, math.prod(sizes), sizes, 0.0, scales, _find_reductions(node, is_linear=True))
    reduction = getattr(node, "_saved_reduction", None)
    if reduction not in (_MEAN, _SUM):
        return Term(ReductionKind.OTHER)
    sizes = tuple(node._saved_target.shape) if name in _COUNTING else input_shapes(node)[0]
    if not has_fixed_sizes(sizes):
        return Term(ReductionKind.OTHER)
    kind = (
        ReductionKind.SUM if reduction == _SUM else ReductionKind.COUNTED if name in _COUNTING else ReductionKind.MEAN
    )
    amount = float(node._saved_total_weight) if kind is ReductionKind.COUNTED else 0.0
    return Term(kind, math.prod(sizes), sizes, amount, scales, _find_reductions(node, is_linear=False), is_loss=True)


def _find_reductions(node: Node, *, is_linear: bool) -> tuple[Reduction, ...]:
    """Return the distinct reductions below this node.  `is_linear`: the node is a sum or mean of its input."""
    described = (_describe_reduction(below, linear) for below, linear in _descend(node, is_linear))
    found = dict.fromkeys(reduction for reduction in described if reduction is not None)
    return tuple(found)[:_MOST_REDUCTIONS]


def _descend(node: Node, is_linear: bool) -> Iterator[tuple[Node, bool]]:
    """Yield the nodes below this one, descending only through operations that keep rows apart."""
    open_ = [(child, is_linear) for child in children_of(node)]
    seen = {child for child, _ in open_}
    while open_ and len(seen) < MOST_NODES:
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


def _describe_reduction(node: Node, is_linear: bool) -> Reduction | None:
    name = node.name()
    if compares_rows(node) or (name.startswith(STACKING) and not any(input_shapes(node))):
        return Reduction(ReductionKind.OTHER, (), is_first=True)
    if not name.startswith((*REDUCING, *MIXING)):
        return None
    sizes, dims = input_shapes(node)[0], reduced_dims(node)
    if not sizes:
        return None
    if not has_fixed_sizes(sizes):
        return Reduction(ReductionKind.OTHER, (), is_first=0 in dims)
    kind = ReductionKind.OTHER
    if is_linear and name.startswith((SUMMING, AVERAGING)):
        kind = ReductionKind.SUM if name.startswith(SUMMING) else ReductionKind.MEAN
    over = tuple(sizes[dim] for dim in dims)
    return Reduction(kind, over, is_first=0 in dims, elements=math.prod(sizes))
