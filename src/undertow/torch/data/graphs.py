"""Reads nodes of the autograd graphs of losses.

In: a node.  Out: its inputs, their shapes, the dimensions that it reduces; whether only parameters are below it.
Nothing is computed, and the graph is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Node = Any  # torch.autograd.graph.Node; its saved attributes depend on the operation

ADDING = {"AddBackward0", "AddBackward1", "SubBackward0", "SubBackward1", "RsubBackward0", "RsubBackward1"}
PASSING = {
    *("NegBackward0", "CloneBackward0", "AliasBackward0", "ToCopyBackward0", "ViewBackward0", "ReshapeAliasBackward0"),
    *("SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "UnsafeViewBackward0"),
}
SCALING = {"MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1"}
LINEAR = {*(ADDING | PASSING | SCALING), "MaskedFillBackward0", "WhereBackward0"}  # with one input
# Element-wise as far as the first dimension is concerned: input and output have it in common.
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
# Operations that do not reduce, but whose result for one row depends on other rows.
MIXING = ("CumsumBackward", "SortBackward", "TopkBackward", "MedianBackward", "KthvalueBackward")
_PRODUCTS = {"MmBackward0", "BmmBackward0", "MvBackward0", "DotBackward0"}
_REARRANGING = {"TBackward0", "TransposeBackward0", "PermuteBackward0", "DiagonalBackward0", "TriuBackward0"}
_COMPARING = {"MmBackward0", "BmmBackward0", "CdistBackward0"}
_USING_TARGETS = ("NllLoss", "LogSoftmax")  # they use targets, which are data
_LEAF = "torch::autograd::AccumulateGrad"
MOST_NODES = 300  # more nodes than a penalty or a reduction has, and fewer than a model has


def children_of(node: Node) -> list[Node]:
    return [child for child, _ in node.next_functions if child is not None]


def input_shapes(node: Node) -> list[tuple[int, ...]]:
    """Return the shapes of the inputs that have gradients."""
    return [tuple(child._input_metadata[index].shape) for child, index in node.next_functions if child is not None]


def has_fixed_sizes(shape: tuple[int, ...]) -> bool:
    """Return whether all sizes are numbers; a nested tensor's ragged dimension is a symbol."""
    return all(isinstance(size, int) for size in shape)


def output_shape(node: Node) -> tuple[int, ...]:
    return tuple(node._input_metadata[0].shape)


def reduced_dims(node: Node) -> list[int]:
    """Return the dimensions of the node's input that it reduces or mixes."""
    count = len(input_shapes(node)[0])
    dims = getattr(node, "_saved_dim", None)
    if dims is None or dims == ():
        return list(range(count))
    return [_signed(dim) % max(1, count) for dim in ((dims,) if isinstance(dims, int) else dims)]


def _signed(dim: int) -> int:
    """Convert a dimension counted from the end, which torch saves as an unsigned number."""
    return dim - (1 << 64) if dim >= 1 << 63 else dim


def compares_rows(node: Node) -> bool:
    """Return whether this node multiplies or compares the rows of a batch with each other."""
    if node.name() not in _COMPARING:
        return False
    *outer, rows, columns = output_shape(node)
    return rows == columns and all(size == 1 for size in outer) and not any(map(is_of_parameters, children_of(node)))


def is_of_parameters(node: Node) -> bool:
    """Return whether this term consists of parameters and constants only.

    A tensor without a gradient counts as a constant if it has the same shape as a function of parameters: the weights
    of an earlier task, or an identity matrix.  Data would have another shape, or be multiplied by a parameter.
    """
    return all(_is_free_of_data(one) for one in _walk_down(node))


def _walk_down(node: Node) -> Iterator[Node | None]:
    """Yield this node and all nodes below it; None instead of a node once there are too many for a penalty."""
    seen, open_ = {node}, [node]
    while open_:
        one = open_.pop()
        yield one if len(seen) < MOST_NODES else None
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
    if name in _REARRANGING or name.startswith((*REDUCING, *JOINING)):
        return True
    if name not in ELEMENTWISE or name.startswith(_USING_TARGETS):
        return False
    return is_whole or name.endswith("Backward1") or _keeps_shape(node)


def _keeps_shape(node: Node) -> bool:
    """Return whether inputs without a gradient are numbers or have the output's shape."""
    if hasattr(node, "_saved_reduction"):
        return True  # torch has broadcast both inputs to one shape
    return all(shape == output_shape(node) for shape in input_shapes(node))
