"""The terms that a loss adds up, read from its autograd graph.

In: the tensors that are handed to backward.  Out: the nodes whose gradients must be weighed, with what `losses` has to
know of each.  Nothing is computed, and the graph stays as it is.

From the loss down, additions, signs, views and scalings are followed; what they lead to is a term: a loss function of
torch's, or a sum or mean of the script's own.  Terms that only parameters take part in, such as weight decay, are the
same on all ranks, and left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from undertow.torch.data.graphs import (
    ADDING,
    AVERAGING,
    PASSING,
    SCALING,
    STACKING,
    SUMMING,
    Node,
    children_of,
    has_plain_sizes,
    input_shapes,
    is_of_parameters,
)
from undertow.torch.data.reports import Kind, Scales, Term
from undertow.torch.data.stages import find_stages

_COUNTING = {"NllLossBackward0", "NllLoss2DBackward0"}
_MEAN, _SUM = 1, 2  # what torch calls its reductions


@dataclass(frozen=True)
class Found:
    """A term, and the node that its gradient comes through first."""

    node: Node
    term: Term


def find_terms(tensors: Iterable[Any]) -> list[Found]:
    """All terms of these losses, in the order in which the graph has them."""
    found: dict[Node, Term] = {}
    for tensor in tensors:
        node = _find_node(tensor)
        if node is None:
            continue
        is_scalar = isinstance(tensor, torch.Tensor) and tensor.numel() == 1
        pairs = _walk(node) if is_scalar else [(node, Term(Kind.OTHER))]
        for one, term in pairs:
            # What is used twice, and scaled in different ways, is no one thing.
            found[one] = term if found.get(one, term) == term else Term(Kind.OTHER)
    return [Found(node, term) for node, term in found.items()]


def find_nodes(tensors: Iterable[Any]) -> list[Node]:
    """Where a backward of these tensors starts."""
    return [node for node in map(_find_node, tensors) if node is not None]


def _find_node(tensor: Any) -> Node | None:
    return tensor.grad_fn if isinstance(tensor, torch.Tensor) else getattr(tensor, "node", None)


def _walk(root: Node) -> Iterator[tuple[Node, Term]]:
    open_: list[tuple[Node, Scales]] = [(root, Scales())]
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
    """Whether it sums or averages single losses, or one: each is a term of its own."""
    name = node.name()
    if name.startswith(STACKING):
        return not any(input_shapes(node))
    if not name.startswith((SUMMING, AVERAGING)):
        return False
    [inner] = children_of(node)
    return input_shapes(node) == [()] or (inner.name().startswith(STACKING) and not any(input_shapes(inner)))


def _add_scale(scales: Scales, scale: torch.Tensor | float, *, is_divisor: bool) -> Scales:
    number = abs(float(scale))
    if is_divisor:
        return Scales((*scales.divisors, number), scales.factors, (*scales.computed, _is_computed(scale)))
    return Scales(scales.divisors, (*scales.factors, 1 / number if number else math.inf), scales.computed)


def _is_computed(scale: torch.Tensor | float) -> bool:
    """Whether the script divides by a tensor.  A number of Python's does not decide about types, a tensor does."""
    least = torch.int8 if isinstance(scale, torch.Tensor) and not scale.is_floating_point() else torch.float16
    return isinstance(scale, torch.Tensor) and torch.result_type(scale, torch.empty((), dtype=least)) != least


def _read_scale(node: Node) -> torch.Tensor | float | None:
    """What this node divides by or multiplies with; None where it is not constant to autograd."""
    saved = [getattr(node, name, None) for name in ("_saved_other", "_saved_self")]
    numbers = [one for one in saved if one is not None]
    is_inverse = node.name() == "DivBackward0" and node.next_functions[0][0] is None
    if len(children_of(node)) != 1 or len(numbers) != 1 or is_inverse:
        return None
    scale: torch.Tensor | float = numbers[0]
    return scale


def _describe(node: Node, scales: Scales) -> Term:
    name = node.name()
    if name.startswith((SUMMING, AVERAGING)):
        kind = Kind.MEAN if name.startswith(AVERAGING) else Kind.SUM
        sizes = input_shapes(node)[0]
        if not has_plain_sizes(sizes):
            return Term(Kind.OTHER)
        return Term(kind, math.prod(sizes), sizes, 0.0, scales, find_stages(node, is_linear=True))
    reduction = getattr(node, "_saved_reduction", None)
    if reduction not in (_MEAN, _SUM):
        return Term(Kind.OTHER)
    sizes = tuple(node._saved_target.shape) if name in _COUNTING else input_shapes(node)[0]
    if not has_plain_sizes(sizes):
        return Term(Kind.OTHER)
    kind = Kind.SUM if reduction == _SUM else Kind.COUNTED if name in _COUNTING else Kind.MEAN
    amount = float(node._saved_total_weight) if kind is Kind.COUNTED else 0.0
    return Term(kind, math.prod(sizes), sizes, amount, scales, find_stages(node, is_linear=False), is_loss=True)
