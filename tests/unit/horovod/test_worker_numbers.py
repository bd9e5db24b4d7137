"""A worker's numbers under the names of Horovod."""

from __future__ import annotations

import pytest

from undertow.hidden import HOROVOD
from undertow.horovod.worker_numbers import find_numbers, guess_numbers, is_homogeneous
from undertow.settings import read_settings


@pytest.mark.parametrize(
    ("rank", "local_rank", "numbers"),
    [(0, 0, "0 4 0 2 0 2"), (1, 1, "1 4 1 2 0 2"), (3, 1, "3 4 1 2 1 2")],
)
def test_ranks_and_sizes_become_horovods_variables(rank: int, local_rank: int, numbers: str) -> None:
    settings = read_settings({}, rank=rank, world_size=4, local_rank=local_rank, local_world_size=2)
    assert guess_numbers(settings).to_environment() == dict(zip(HOROVOD, numbers.split(), strict=True))


def test_hosts_are_numbered_in_the_order_of_their_first_ranks() -> None:
    hosts = ["b", "b", "a", "a", "a"]
    found = [find_numbers(read_settings({}, rank=0, world_size=5), rank=rank, hosts=hosts) for rank in range(5)]
    assert [numbers.cross_rank for numbers in found] == [0, 0, 1, 1, 1]
    assert {(numbers.cross_size, numbers.size) for numbers in found} == {(2, 5)}
    assert not is_homogeneous(hosts)
    assert is_homogeneous(hosts[:4])
