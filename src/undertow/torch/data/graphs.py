"""Autograd graphs of losses: which operations they consist of, and what those are said to have computed.

In: a node.  Out: its inputs, their shapes, the dimensions that it reduces; whether parameters alone are below it.
Nothing is computed, and the graph stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Node = Any  # torch.autograd.graph.Node: what is saved in it depends on its kind

ADDING = {"AddBackward0", "AddBackward1", "SubBackward0", "SubBackward1", "RsubBackward0", "RsubBackward1"}
PASSING = {
    *("NegBackward0", "CloneBackward0", "AliasBackward0", "ToCopyBackward0", "ViewBackward0", "ReshapeAliasBackward0"),
    *("SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "UnsafeViewBackward0"),
}
SCALING = {"MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1"}
LINEAR = {*(ADDING | PASSING | SCALING), "MaskedFillBackward0", "WhereBackward0"}  # with one input
# Element by element: the first dimension of what comes out is that of what goes in.
ELEMENTWISE = {
    *(ADDING | PASSING | SCALING),
    *("PowBackward0", "PowBackward1", "AbsBackward0", "ExpBackward0", "LogBackward0", "SqrtBackward0", "TanhBackward0"),
    *("ClampBackward0", "ClampBackward1", "ClampMinBackward0", "ClampMaxBackward0", "WhereBackward0", "ReluBackward0"),
    *("MaskedFillBackward0", "SigmoidBackward0", "LogSigmoidBackward0", "SoftplusBackward0", "Log1PBackward0"),
    *("MseLossBackward0", "L1LossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0", "LogSoftmaxBackward0"),
    *("NllLossBackward0", "NllLoss2DBackward0", "BinaryCrossEntropyWithLogitsBackward0", "BinaryCrossEntropyBackward0"),
}
SUMMING = "SumBackward"
AVERAGING = "MeanBackward"
STACKING = "StackBackward"
JOINING = (STACKING, "CatBackward")
REDUCING = (
    *(SUMMING, AVERAGING, "NormBackward", "LinalgVectorNormBackward", "VarBackward", "StdBackward", "MaxBackward"),
    *("AmaxBackward", "MinBackward", "AminBackward", "LogsumexpBackward", "ProdBackward"),
)
# They do not reduce, but what comes out of one row depends on the others as well.
MIXING = ("CumsumBackward", "SortBackward", "TopkBackward", "MedianBackward", "KthvalueBackward")
_PRODUCTS = {"MmBackward0", "BmmBackward0", "MvBackward0", "DotBackward0"}
_TURNING = {"TBackward0", "TransposeBackward0", "PermuteBackward0", "DiagonalBackward0", "TriuBackward0"}
_COMPARING = {"MmBackward0", "BmmBackward0", "CdistBackward0"}
_CHOOSING = ("NllLoss", "LogSoftmax")  # by targets, which are data
_LEAF = "torch::autograd::AccumulateGrad"
FEW = 300  # nodes of a penalty or of a reduction; a model has more


def children_of(node: Node) -> list[Node]:
    return [child for child, _ in node.next_functions if child is not None]


def input_shapes(node: Node) -> list[tuple[int, ...]]:
    """Of the inputs that have gradients."""
    return [tuple(child._input_metadata[index].shape) for child, index in node.next_functions if child is not None]


def has_plain_sizes(shape: tuple[int, ...]) -> bool:
    """Whether all sizes are numbers; that of a nested tensor's ragged dimension is a symbol."""
    return all(isinstance(size, int) for size in shape)


def output_shape(node: Node) -> tuple[int, ...]:
    return tuple(node._input_metadata[0].shape)


def reduced_dims(node: Node) -> list[int]:
    """The dimensions of its input that a reduction goes over, or that are mixed."""
    count = len(input_shapes(node)[0])
    dims = getattr(node, "_saved_dim", None)
    if dims is None or dims == ():
        return list(range(count))
    return [_signed(dim) % max(1, count) for dim in ((dims,) if isinstance(dims, int) else dims)]


def _signed(dim: int) -> int:
    """Torch shows dimensions that are counted from the end as if they were unsigned."""
    return dim - (1 << 64) if dim >= 1 << 63 else dim


def compares_rows(node: Node) -> bool:
    """Whether this is a product of the rows of a batch with each other."""
    if node.name() not in _COMPARING:
        return False
    *outer, rows, columns = output_shape(node)
    return rows == columns and all(size == 1 for size in outer) and not any(map(is_of_parameters, children_of(node)))


def is_of_parameters(node: Node) -> bool:
    """Whether nothing but parameters and constants is in this term.

    A tensor without a gradient that is as large as what a parameter makes is a constant: the weights of an earlier
    task, an identity matrix.  Data would be of another size, or be multiplied with a parameter.
    """
    return all(_is_free_of_data(one) for one in _everything_below(node))


def _everything_below(node: Node) -> Iterator[Node]:
    """At most as much as a penalty may have; a node that is not one's at the latest then."""
    seen, open_ = {node}, [node]
    while open_:
        one = open_.pop()
        yield one if len(seen) < FEW else None
        fresh = [child for child in children_of(one) if child not in seen]
        seen.update(fresh)
        open_ += fresh


def _is_free_of_data(node: Node | None) -> bool:
    if node is None:
        return False
    name = node.name()
    if name == _LEAF:
        return True
    is_whole = len(children_of(node)) == len(node.next_functions)
    if name in _PRODUCTS:
        return is_whole
    if name in _TURNING or name.startswith((*REDUCING, *JOINING)):
        return True
    if name not in ELEMENTWISE or name.startswith(_CHOOSING):
        return False
    return is_whole or name.endswith("Backward1") or _keeps_shape(node)


def _keeps_shape(node: Node) -> bool:
    """Whether what has no gradient is a number, or as large as what has one."""
    if hasattr(node, "_saved_reduction"):
        return True  # torch makes both as large before
    return all(shape == output_shape(node) for shape in input_shapes(node))
