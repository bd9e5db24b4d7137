"""Bytes and work of every scheme, by the formulas and figures of the papers."""

from __future__ import annotations

import pytest

from undertow.plan.profile import LayerKind, TensorProfile
from undertow.plan.scheme import (
    Scheme,
    count_dense_traffic,
    count_product_flops,
    count_server_flops,
    count_traffic,
    find_break_even,
    list_schemes,
)
from undertow.tools.zoo import find_model
from undertow.tools.zoo.model import profile_model

HEIGHT, DEPTH, ROWS = 6, 10, 3
LINEAR = TensorProfile(name="fc.weight", shape=(HEIGHT, DEPTH), kind=LayerKind.LINEAR, rows=ROWS)
EMBEDDING = TensorProfile(name="words.weight", shape=(100, 16), kind=LayerKind.EMBEDDING, rows=5)


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_bytes_of_a_linear_layer_follow_the_table(workers: int) -> None:
    others = workers - 1

    def floats(scheme: Scheme) -> float:
        return count_traffic(LINEAR, scheme, workers=workers, servers=workers).bytes_out / 4

    assert floats(Scheme.DENSE) == pytest.approx(2 * HEIGHT * DEPTH * others / workers)
    assert floats(Scheme.ALLREDUCE) == floats(Scheme.DENSE)
    assert count_dense_traffic(HEIGHT * DEPTH, workers) == pytest.approx(floats(Scheme.DENSE))
    assert floats(Scheme.FACTORS) == pytest.approx(ROWS * others * (HEIGHT + DEPTH))
    shards = min(workers, HEIGHT)  # those that have rows to make
    to_shard = others / workers * (ROWS * (HEIGHT + shards * DEPTH) + HEIGHT * DEPTH)
    assert floats(Scheme.FACTORS_TO_SHARD) == pytest.approx(to_shard)


@pytest.mark.parametrize(("workers", "servers"), [(4, 4), (8, 2), (8, 1), (3, 3), (1, 1)])
def test_workers_and_servers_are_counted_apart(workers: int, servers: int) -> None:
    """Poseidon's Table 1, for a host with both: it counts floats that are sent and received."""

    def floats(scheme: Scheme) -> float:
        return 2 * count_traffic(LINEAR, scheme, workers=workers, servers=servers).bytes_out / 4

    assert floats(Scheme.DENSE) == pytest.approx(2 * HEIGHT * DEPTH * (workers + servers - 2) / servers)
    assert floats(Scheme.FACTORS) == pytest.approx(2 * ROWS * (workers - 1) * (HEIGHT + DEPTH))
    assert floats(Scheme.ALLREDUCE) == pytest.approx(4 * HEIGHT * DEPTH * (workers - 1) / workers)


def test_a_server_multiplies_its_own_rows_of_all_factors() -> None:
    assert count_server_flops(LINEAR, workers=8, servers=8) == count_product_flops(LINEAR)
    assert count_server_flops(LINEAR, workers=8, servers=2) == 4 * count_product_flops(LINEAR)


def test_an_embedding_sends_its_rows_and_their_numbers_to_everybody() -> None:
    assert count_traffic(EMBEDDING, Scheme.ROWS, workers=4, servers=4).bytes_out == 3 * 5 * (16 * 4 + 8)


def test_factors_of_half_the_width_are_half_the_bytes() -> None:
    half = TensorProfile(name="w", shape=(HEIGHT, DEPTH), kind=LayerKind.LINEAR, rows=ROWS, row_itemsize=2)

    def count(tensor: TensorProfile, scheme: Scheme) -> float:
        return count_traffic(tensor, scheme, workers=4, servers=4).bytes_out

    assert count(half, Scheme.FACTORS) == count(LINEAR, Scheme.FACTORS) / 2
    assert count(half, Scheme.DENSE) == count(LINEAR, Scheme.DENSE)


@pytest.mark.parametrize(
    ("tensor", "schemes"),
    [
        (LINEAR, [Scheme.DENSE, Scheme.FACTORS, Scheme.FACTORS_TO_SHARD]),
        (EMBEDDING, [Scheme.DENSE, Scheme.ROWS]),
        (TensorProfile(name="fc.bias", shape=(6,), kind=LayerKind.LINEAR), [Scheme.DENSE]),
        (TensorProfile(name="conv", shape=(6, 3, 3, 3), kind=LayerKind.CONV), [Scheme.DENSE]),
        (TensorProfile(name="never.seen", shape=(6, 10), kind=LayerKind.LINEAR, rows=0), [Scheme.DENSE]),
    ],
)
def test_what_is_possible_depends_on_the_layer(tensor: TensorProfile, schemes: list[Scheme]) -> None:
    assert list_schemes(tensor) == schemes


@pytest.mark.parametrize(
    ("model", "tensor", "published"),
    [
        ("vgg19", "fc6.weight", 220),
        ("vgg19", "fc7.weight", 128),
        ("vgg19", "fc8.weight", 50),
        ("vgg19-22k", "fc8.weight", 216),
        ("inception-v3", "fc.weight", 42),
        ("resnet50", "fc.weight", 42),
        ("resnet152", "fc.weight", 42),
        ("googlenet", "fc.weight", 8),
        ("alexnet", "fc6.weight", 22),
        ("alexnet", "fc7.weight", 16),
        ("alexnet", "fc8.weight", 6),
    ],
)
def test_break_even_counts_of_machines_are_those_of_the_paper(model: str, tensor: str, published: int) -> None:
    tensors = {profile.name: profile for profile in profile_model(find_model(model)).tensors}
    assert round(find_break_even(tensors[tensor])) == published
