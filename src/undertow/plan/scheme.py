"""How a tensor can be synchronised, and what each way costs.

In: a tensor's profile, the number of workers.  Out: bytes that one host sends in a step, and work.
All schemes are lossless.  The shards are with the workers, one each.
"""

from __future__ import annotations

import enum

import msgspec

from undertow.plan.profile import Kind, TensorProfile

INDEX_BYTES = 8  # of the number of a row


class Scheme(enum.Enum):
    """The names that plans and people use."""

    DENSE = "dense"  # the whole gradient to the shards, the mean back
    FACTORS = "factors"  # Poseidon's sufficient factors (ATC 2017): both thin matrices to everybody
    FACTORS_TO_SHARD = "factors-to-shard"  # Project Adam's way (OSDI 2014), but every shard gets its own rows
    ROWS = "rows"  # an embedding's touched rows to everybody
    ALLREDUCE = "allreduce"  # torch's own process group


# These leave as something else than the gradient.
IN_PARTS = (Scheme.FACTORS, Scheme.FACTORS_TO_SHARD, Scheme.ROWS)


class Traffic(msgspec.Struct, frozen=True):
    """What one host sends for a tensor in a step: first its own part, then what its shard answers."""

    push_bytes: float
    answer_bytes: float = 0.0

    @property
    def bytes_out(self) -> float:
        return self.push_bytes + self.answer_bytes


def list_schemes(tensor: TensorProfile) -> list[Scheme]:
    """The ways that are open to it on any cluster, the plainest first."""
    if tensor.kind is Kind.LINEAR and tensor.rows:
        return [Scheme.DENSE, Scheme.FACTORS, Scheme.FACTORS_TO_SHARD]
    if tensor.kind is Kind.EMBEDDING and tensor.rows:
        return [Scheme.DENSE, Scheme.ROWS]
    return [Scheme.DENSE]


def count_traffic(tensor: TensorProfile, scheme: Scheme, workers: int) -> Traffic:
    """Bytes of one host, one direction, one step."""
    others = workers - 1
    share = others / workers
    whole = tensor.size_bytes
    if scheme in (Scheme.DENSE, Scheme.ALLREDUCE):
        return Traffic(whole * share, whole * share)
    rows, width = tensor.rows, tensor.row_itemsize
    if scheme is Scheme.ROWS:
        return Traffic(rows * (tensor.shape[1] * tensor.itemsize + INDEX_BYTES) * others)
    height, depth = tensor.shape
    if scheme is Scheme.FACTORS:
        return Traffic(rows * (height + depth) * width * others)
    # Each shard that has rows to make gets the activations and its own columns of the deltas.
    return Traffic(share * rows * (height + min(workers, height) * depth) * width, whole * share)


def count_product_flops(tensor: TensorProfile) -> float:
    """Of the product that makes a linear layer's gradient out of one worker's factors.

    With `FACTORS` every worker makes those of all workers; with `FACTORS_TO_SHARD` every shard makes its
    own rows of all of them, which is as much as one product, and no worker makes any.
    """
    return 2.0 * tensor.rows * tensor.elements


def find_break_even(tensor: TensorProfile) -> float:
    """P*: on so many workers, and their shards, factors send as many bytes as a dense gradient."""
    height, depth = tensor.shape
    return 2.0 * height * depth / (tensor.rows * (height + depth))
