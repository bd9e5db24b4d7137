"""Schemes by which a tensor can be synchronised, and their costs.

In: a tensor's profile, the numbers of workers and servers.  Out: the bytes that one host sends in a step, and the work.
All schemes are lossless.  Servers, each with one shard of the keys, share their hosts with workers.
"""

from __future__ import annotations

import enum

import msgspec

from undertow.plan.profile import LayerKind, TensorProfile

INDEX_BYTES = 8  # size of a row's index


class Scheme(enum.Enum):
    """Scheme of a tensor, with its name in plans and options."""

    DENSE = "dense"  # the whole gradient to the shards, the mean back
    FACTORS = "factors"  # Poseidon's sufficient factors (ATC 2017): both thin matrices to every worker
    FACTORS_TO_SHARD = "factors-to-shard"  # as in Project Adam (OSDI 2014), but every shard computes only its own rows
    ROWS = "rows"  # an embedding's touched rows to every worker
    ALLREDUCE = "allreduce"  # torch's process group


# Schemes that send something other than the gradient.
FACTORED = (Scheme.FACTORS, Scheme.FACTORS_TO_SHARD, Scheme.ROWS)


class Traffic(msgspec.Struct, frozen=True):
    """Bytes that a host with a worker and a server sends for a tensor in a step: contributions, then answers."""

    push_bytes: float
    answer_bytes: float = 0.0

    @property
    def bytes_out(self) -> float:
        return self.push_bytes + self.answer_bytes


def list_schemes(tensor: TensorProfile) -> list[Scheme]:
    """Return the schemes that are possible for a tensor on any cluster, the dense one first."""
    if tensor.kind is LayerKind.LINEAR and tensor.rows:
        return [Scheme.DENSE, Scheme.FACTORS, Scheme.FACTORS_TO_SHARD]
    if tensor.kind is LayerKind.EMBEDDING and tensor.rows:
        return [Scheme.DENSE, Scheme.ROWS]
    return [Scheme.DENSE]


def count_traffic(tensor: TensorProfile, scheme: Scheme, *, workers: int, servers: int) -> Traffic:
    """Return the bytes that a host with a worker and a server sends.

    Poseidon's Table 1 (ATC 2017) for P1 workers and P2 servers, last column, which counts floats in both directions:
    2MN(P1+P2-2)/P2 for a dense gradient, 2K(P1-1)(M+N) for factors.
    """
    others, whole = workers - 1, tensor.size_bytes
    if scheme is Scheme.ALLREDUCE:
        return Traffic(whole * (others / workers), whole * (others / workers))
    remote = (servers - 1) / servers  # share of a tensor that servers on other hosts own
    answer_bytes = whole * (others / servers)  # the share of the host's own server, to every other worker
    if scheme is Scheme.DENSE:
        return Traffic(whole * remote, answer_bytes)
    rows, width = tensor.rows, tensor.row_itemsize
    if scheme is Scheme.ROWS:
        return Traffic(rows * (tensor.shape[1] * tensor.itemsize + INDEX_BYTES) * others)
    height, depth = tensor.shape
    if scheme is Scheme.FACTORS:
        return Traffic(rows * (height + depth) * width * others)
    # Each server that has rows to compute gets the activations and its own columns of the deltas.
    return Traffic(remote * rows * (height + min(servers, height) * depth) * width, answer_bytes)


def count_dense_traffic(size: float, workers: int) -> float:
    """Return how much a worker sends for a dense gradient of this size, in bytes or numbers, if each owns a shard.

    Its contributions to the other shards, and the results of its own shard to the other workers; a ring sends as much.
    """
    return 2 * size * (workers - 1) / workers


def count_product_flops(tensor: TensorProfile) -> float:
    """Return the operations of the product that computes a linear layer's gradient from one worker's factors.

    With `FACTORS` every worker computes the products of all workers; with `FACTORS_TO_SHARD` no worker computes any.
    """
    return 2.0 * tensor.rows * tensor.elements


def count_server_flops(tensor: TensorProfile, *, workers: int, servers: int) -> float:
    """Return the operations of one server under `FACTORS_TO_SHARD`: its own rows of all workers' products."""
    return count_product_flops(tensor) * (workers / servers)


def find_break_even(tensor: TensorProfile) -> float:
    """Return P*: with this many workers and as many servers, factors cost as many bytes as the dense gradient."""
    height, depth = tensor.shape
    return 2.0 * height * depth / (tensor.rows * (height + depth))
