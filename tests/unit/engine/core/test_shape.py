"""The shape of a group: workers and shards are counted separately, and one mapping has the owner of each shard."""

from __future__ import annotations

from tests.support.fake_group import make_shape


def test_every_worker_owns_a_shard_unless_servers_do() -> None:
    shape = make_shape(4)
    assert (shape.processes, shape.workers, shape.shards, list(shape.owners)) == (4, 4, 4, [0, 1, 2, 3])


def test_dedicated_servers_have_the_last_ranks_and_all_shards() -> None:
    shape = make_shape(5, dedicated_servers=2)
    assert (shape.processes, shape.workers, shape.shards, list(shape.owners)) == (5, 3, 2, [3, 4])


def test_peers_begin_with_the_next_rank() -> None:
    assert make_shape(4, rank=2).peers == [3, 0, 1]
    assert make_shape(4, rank=2).other_workers == [3, 0, 1]
    assert make_shape(5, rank=1, dedicated_servers=2).peers == [2, 3, 4, 0]
    assert make_shape(5, rank=1, dedicated_servers=2).other_workers == [2, 0]
    assert make_shape(5, rank=4, dedicated_servers=2).other_workers == [0, 1, 2]
