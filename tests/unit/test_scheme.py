"""Bytes and work of every scheme: the formulas of the papers, and their figures."""

from __future__ import annotations

import pytest

from undertow.plan.profile import Kind, TensorProfile
from undertow.plan.scheme import Scheme, count_traffic, find_break_even, list_schemes
from undertow.zoo import find_model
from undertow.zoo.profile import profile_model

HEIGHT, DEPTH, ROWS = 6, 10, 3
LINEAR = TensorProfile(name="fc.weight", shape=(HEIGHT, DEPTH), kind=Kind.LINEAR, rows=ROWS)
EMBEDDING = TensorProfile(name="words.weight", shape=(100, 16), kind=Kind.EMBEDDING, rows=5)


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_bytes_of_a_linear_layer_follow_the_table(workers: int) -> None:
    others = workers - 1

    def floats(scheme: Scheme) -> float:
        return count_traffic(LINEAR, scheme, workers).bytes_out / 4

    assert floats(Scheme.DENSE) == pytest.approx(2 * HEIGHT * DEPTH * others / workers)
    assert floats(Scheme.ALLREDUCE) == floats(Scheme.DENSE)
    assert floats(Scheme.FACTORS) == pytest.approx(ROWS * others * (HEIGHT + DEPTH))
    shards = min(workers, HEIGHT)  # those that have rows to make
    to_shard = others / workers * (ROWS * (HEIGHT + shards * DEPTH) + HEIGHT * DEPTH)
    assert floats(Scheme.FACTORS_TO_SHARD) == pytest.approx(to_shard)


def test_an_embedding_sends_its_rows_and_their_numbers_to_everybody() -> None:
    assert count_traffic(EMBEDDING, Scheme.ROWS, 4).bytes_out == 3 * 5 * (16 * 4 + 8)


def test_factors_of_half_the_width_are_half_the_bytes() -> None:
    half = TensorProfile(name="w", shape=(HEIGHT, DEPTH), kind=Kind.LINEAR, rows=ROWS, row_itemsize=2)
    assert count_traffic(half, Scheme.FACTORS, 4).bytes_out == count_traffic(LINEAR, Scheme.FACTORS, 4).bytes_out / 2
    assert count_traffic(half, Scheme.DENSE, 4) == count_traffic(LINEAR, Scheme.DENSE, 4)


@pytest.mark.parametrize(
    ("tensor", "schemes"),
    [
        (LINEAR, [Scheme.DENSE, Scheme.FACTORS, Scheme.FACTORS_TO_SHARD]),
        (EMBEDDING, [Scheme.DENSE, Scheme.ROWS]),
        (TensorProfile(name="fc.bias", shape=(6,), kind=Kind.LINEAR), [Scheme.DENSE]),
        (TensorProfile(name="conv", shape=(6, 3, 3, 3), kind=Kind.CONV), [Scheme.DENSE]),
        (TensorProfile(name="never.seen", shape=(6, 10), kind=Kind.LINEAR, rows=0), [Scheme.DENSE]),
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
