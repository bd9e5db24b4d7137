"""Files that describe a cluster: what is read, and the errors of wrong files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from undertow.errors import ConfigError
from undertow.tools.sim.topology import LATENCY_S, Host, read_topology

HOST = {"bandwidth": "10gbit"}


def write(folder: Path, content: Any) -> Path:
    path = folder / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_file_says_hosts_links_racks_and_latency(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "latency_us": 50,
            "racks": {"left": "20gbit", "right": "40 Gbit/s"},
            "hosts": [
                {"count": 2, "bandwidth": "10gbit", "rack": "left"},
                {"bandwidth": "400mbit", "rack": "right", "slowdown": 1.5, "workers": 3},
            ],
        },
    )
    topology = read_topology(path)
    fast = Host(bandwidth_bits_per_s=1e10, rack="left")
    assert topology.hosts == (fast, fast, Host(bandwidth_bits_per_s=4e8, rack="right", slowdown=1.5, workers=3))
    assert topology.uplinks_bits_per_s == {"left": 2e10, "right": 4e10}
    assert topology.latency_s == pytest.approx(50e-6)
    assert topology.places == [0, 1, 2, 2, 2]
    assert not topology.is_uniform


def test_only_the_bandwidth_must_be_said(tmp_path: Path) -> None:
    topology = read_topology(str(write(tmp_path, {"hosts": [HOST]})))
    assert topology.hosts == (Host(bandwidth_bits_per_s=1e10),)
    assert topology.latency_s == pytest.approx(LATENCY_S)
    assert topology.uplinks_bits_per_s == {}


def test_no_host_of_a_kind_is_possible_as_long_as_there_is_another(tmp_path: Path) -> None:
    topology = read_topology(write(tmp_path, {"hosts": [HOST | {"count": 0}, HOST]}))
    assert len(topology.hosts) == 1


def with_host(**changes: Any) -> dict[str, Any]:
    return {"hosts": [HOST | changes]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "missing required field `hosts`"),
        ({"hosts": 4}, "Expected `array`, got `int` - at `$.hosts`"),
        ({"hosts": []}, "a cluster without hosts"),
        ({"hosts": [HOST], "switches": 2}, "unknown field `switches`"),
        ({"hosts": [HOST], "latency_us": "slow"}, "got `str` - at `$.latency_us`"),
        ({"hosts": [HOST], "racks": ["a"]}, "got `array` - at `$.racks`"),
        ({"hosts": [HOST | {"rack": "a"}], "racks": {"a": "wide"}}, "'wide' is not a bandwidth"),
        ({"hosts": [{}]}, "missing required field `bandwidth` - at `$.hosts[0]`"),
        ({"hosts": [HOST, {"bandwidth": 10}]}, "got `int` - at `$.hosts[1].bandwidth`"),
        (with_host(bandwidth="fast"), "'fast' is not a bandwidth"),
        (with_host(bandwidth="100kbit"), "a bandwidth of '100kbit' for a simulation is not possible: give 10mbit to"),
        (with_host(count=10**9), "1000000000 hosts are not possible: give 0 to 1024"),
        (with_host(bandwidth="0gbit"), "a bandwidth of '0gbit' is not possible"),
        (with_host(count=-1), "-1 hosts are not possible"),
        (with_host(count=0), "a cluster without hosts"),
        (with_host(count=1.5), "at `$.hosts[0].count`"),
        (with_host(slowdown=0), "a slowdown of 0 is not possible"),
        (with_host(slowdown=-2), "a slowdown of -2 is not possible"),
        (with_host(slowdown="twice"), "got `str` - at `$.hosts[0].slowdown`"),
        (with_host(workers=0), "a host with 0 workers is not possible"),
        (with_host(workers="two"), "got `str` - at `$.hosts[0].workers`"),
        (with_host(rack=3), "got `int` - at `$.hosts[0].rack`"),
        (with_host(rack="left"), "a host is in rack 'left', whose uplink is not given"),
        (with_host(speed="10gbit"), "unknown field `speed` - at `$.hosts[0]`"),
        (
            {"hosts": [HOST, HOST | {"rack": "a"}], "racks": {"a": "1gbit"}},
            "some hosts are in a rack and others in none",
        ),
        ("{", "mine.json describes no cluster"),
        ("[]", "Expected `object`, got `array`"),
        ("", "mine.json describes no cluster"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_field(tmp_path: Path, content: Any, words: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        read_topology(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_latency_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine\.json.*latency"):
        read_topology(write(tmp_path, {"hosts": [HOST], "latency_us": -5}))


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json cannot be read: No such file"):
        read_topology(tmp_path / "nowhere.json")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_topology(tmp_path)


def test_a_file_that_is_no_text_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"mine\.json describes no cluster"):
        read_topology(tmp_path / "mine.json")
