"""A cluster as the planner sees it: impossible ones are refused."""

from __future__ import annotations

from typing import Any

import pytest

from undertow.errors import ConfigError
from undertow.plan.cluster import Cluster


def make_cluster(**figures: Any) -> Cluster:
    return Cluster(**{"workers": 4, "bytes_per_s": 1e9, "flops_per_s": 1e12, "shard_flops_per_s": 1e11, **figures})


def test_without_dedicated_servers_each_worker_has_one() -> None:
    assert make_cluster().servers == 4
    assert make_cluster(servers=2).servers == 2


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"workers": 0}, "a cluster of 0 workers is not possible"),
        ({"servers": -1}, "a cluster with -1 servers is not possible"),
        ({"bytes_per_s": 0}, "a cluster whose bytes_per_s is 0 is not possible"),
        ({"flops_per_s": float("nan")}, "a cluster whose flops_per_s is nan is not possible"),
        ({"shard_flops_per_s": float("inf")}, "a cluster whose shard_flops_per_s is inf is not possible"),
        ({"add_bytes_per_s": -1}, "a cluster whose add_bytes_per_s is -1 is not possible"),
    ],
)
def test_impossible_clusters_are_refused(figures: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_cluster(**figures)
