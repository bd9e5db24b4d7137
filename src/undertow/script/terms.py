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

from undertow.script.losses import Kind, Term

_ADDING = {"AddBackward0", "AddBackward1", "SubBackward0", "SubBackward1", "RsubBackward0", "RsubBackward1"}
_PASSING = {
    *("NegBackward0", "CloneBackward0", "AliasBackward0", "ToCopyBackward0", "ViewBackward0", "ReshapeAliasBackward0"),
    *("SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0"),
}
_SCALING = {"MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1"}
_COUNTING = {"NllLossBackward0", "NllLoss2DBackward0"}
_LEAF = "torch::autograd::AccumulateGrad"
# Element by element, or over dimensions: the first dimension of what comes out is that of what goes in, unless it is
# among `_saved_dim`.
_ELEMENTWISE = {
    *(_ADDING | _PASSING | _SCALING),
    *("PowBackward0", "AbsBackward0", "ExpBackward0", "LogBackward0", "SqrtBackward0", "ClampBackward1"),
    *("ClampMinBackward0", "WhereBackward0", "ReluBackward0", "MaskedFillBackward0", "SigmoidBackward0"),
}
_REDUCING = ("SumBackward", "MeanBackward", "NormBackward", "LinalgVectorNormBackward", "VarBackward", "StdBackward")
_JOINING = ("StackBackward", "CatBackward")
_SUMMING = "SumBackward"
_AVERAGING = "MeanBackward"
_MEAN, _SUM = 1, 2  # what torch calls its reductions
_FEW = 300  # nodes; nobody writes larger penalties, and a model is larger

Node = Any  # torch.autograd.graph.Node: what is saved in it depends on its kind


@dataclass(frozen=True)
class Found:
    """A term, and the node that its gradient comes through first."""

    node: Node
    term: Term


def find_terms(tensors: Iterable[Any]) -> list[Found]:
    """All terms of these losses, in the order in which the graph has them."""
    found: dict[Node, Term] = {}
    for tensor in tensors:
        node = tensor.grad_fn if isinstance(tensor, torch.Tensor) else getattr(tensor, "node", None)
        if node is None:
            continue
        is_scalar = isinstance(tensor, torch.Tensor) and tensor.numel() == 1
        pairs = _walk(node) if is_scalar else [(node, Term(Kind.OTHER))]
        for one, term in pairs:
            # What is used twice, and scaled in different ways, is no one thing.
            found[one] = term if found.get(one, term) == term else Term(Kind.OTHER)
    return [Found(node, term) for node, term in found.items()]


def _walk(root: Node) -> Iterator[tuple[Node, Term]]:
    open_: list[tuple[Node, tuple[float, ...], tuple[float, ...]]] = [(root, (), ())]
    while open_:
        node, divisors, factors = open_.pop()
        name, inner = node.name(), _children(node)
        if name in _ADDING or name in _PASSING:
            open_ += [(child, divisors, factors) for child in reversed(inner)]
        elif name in _SCALING and (scale := _read_scale(node)) is not None:
            if name.startswith("Div"):
                divisors = (*divisors, abs(scale))
            else:
                factors = (*factors, 1 / abs(scale) if scale else math.inf)
            open_ += [(child, divisors, factors) for child in inner]
        elif not _is_of_parameters(node):
            yield node, _describe(node, divisors, factors)


def _children(node: Node) -> list[Node]:
    return [child for child, _ in node.next_functions if child is not None]


def _read_scale(node: Node) -> float | None:
    """The number that this node divides by or multiplies with; None where it is not constant to autograd."""
    saved = [getattr(node, name, None) for name in ("_saved_other", "_saved_self")]
    numbers = [one for one in saved if one is not None]
    is_inverse = node.name() == "DivBackward0" and node.next_functions[0][0] is None
    if len(_children(node)) != 1 or len(numbers) != 1 or is_inverse:
        return None
    return float(numbers[0])


def _describe(node: Node, divisors: tuple[float, ...], factors: tuple[float, ...]) -> Term:
    name = node.name()
    if name.startswith((_SUMMING, _AVERAGING)):
        sizes = node._saved_self_sym_sizes
        elements, rows = math.prod(sizes), sizes[0] if sizes else 1
        if name.startswith(_AVERAGING):
            return Term(Kind.MEAN, elements)
        return _describe_below(node) or Term(Kind.SUM, elements, rows, 0.0, divisors, factors)
    reduction = getattr(node, "_saved_reduction", None)
    if reduction not in (_MEAN, _SUM):
        return Term(Kind.OTHER)
    if name in _COUNTING:
        elements = node._saved_target.numel()
        if reduction == _MEAN:
            return Term(Kind.COUNTED, elements, amount=float(node._saved_total_weight))
    else:
        elements = _count_inputs(node)
    return Term(Kind.MEAN, elements) if reduction == _MEAN else Term(Kind.SUM, elements, 0, 0.0, divisors, factors)


def _count_inputs(node: Node) -> int:
    """How many elements the first input has that has a gradient."""
    child, index = next((child, index) for child, index in node.next_functions if child is not None)
    return math.prod(child._input_metadata[index].shape)


def _describe_below(node: Node) -> Term | None:
    """What is below this sum, as far as that goes element by element, if it has reduced the batch already."""
    for below in _descend(_children(node)):
        name = below.name()
        if name.startswith(_AVERAGING) and _drops_rows(below):
            return Term(Kind.MEAN, math.prod(below._saved_self_sym_sizes))
        if name.startswith(_JOINING) or (name.startswith(_REDUCING) and _drops_rows(below)):
            return Term(Kind.OTHER)
    return None


def _drops_rows(node: Node) -> bool:
    dims = getattr(node, "_saved_dim", None)
    if dims is None:
        return True
    sizes = getattr(node, "_saved_self_sym_sizes", None) or node._saved_self.shape
    return any(dim % len(sizes) == 0 for dim in ((dims,) if isinstance(dims, int) else dims))


def _descend(nodes: list[Node]) -> Iterator[Node]:
    """What is below, through operations that go element by element; the others are named, not entered."""
    seen, open_ = set(nodes), list(nodes)
    while open_ and len(seen) < _FEW:
        node = open_.pop()
        yield node
        name = node.name()
        if name in _ELEMENTWISE or (name.startswith(_REDUCING) and not _drops_rows(node)):
            fresh = [child for child in _children(node) if child not in seen]
            seen.update(fresh)
            open_ += fresh


def _is_of_parameters(node: Node) -> bool:
    """Whether nothing but parameters and numbers is in this term."""
    seen, open_ = {node}, [node]
    while open_ and len(seen) < _FEW:
        one = open_.pop()
        name = one.name()
        if name == _LEAF:
            continue
        if name not in _ELEMENTWISE and not name.startswith((*_REDUCING, *_JOINING)):
            return False
        if not _has_no_data(one):
            return False
        fresh = [child for child in _children(one) if child not in seen]
        seen.update(fresh)
        open_ += fresh
    return not open_


def _has_no_data(node: Node) -> bool:
    """Whether every tensor that this node computes with has a gradient, or is a single number."""
    if len(_children(node)) == len(node.next_functions) or node.name().endswith("Backward1"):
        return True
    numbers = [getattr(node, name, None) for name in ("_saved_other", "_saved_self")]
    return node.name() in _SCALING and all(one is None or getattr(one, "numel", lambda: 1)() == 1 for one in numbers)
