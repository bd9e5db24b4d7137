"""Names and addresses of the emulated network, and the commands that create it."""

from __future__ import annotations

import ipaddress

import pytest

from undertow.errors import ConfigError
from undertow.tools.lab.iproute import (
    MAX_HOSTS,
    add_link,
    address_of,
    burst_bytes,
    format_hosts_file,
    port_of,
    queue_bytes,
    remove_links,
    set_up_host,
    set_up_switch,
    shape_command,
)
from undertow.tools.lab.network import check_size


def test_everybody_has_an_address_of_one_small_network() -> None:
    addresses = {ipaddress.ip_address(address_of(host)) for host in range(MAX_HOSTS)}
    assert len(addresses) == MAX_HOSTS
    assert addresses < set(ipaddress.ip_network("10.77.0.0/24").hosts())


@pytest.mark.parametrize("hosts", [0, -1, MAX_HOSTS + 1])
def test_another_number_of_hosts_is_refused(hosts: int) -> None:
    with pytest.raises(ConfigError, match=f"{hosts} hosts are not possible: the lab has 1 to 250"):
        check_size(hosts)


def test_a_cable_ends_at_the_switch_and_in_the_host() -> None:
    assert add_link(9, "/proc/1/fd/5") == [
        "link add h9 group 77 type veth peer name eth0 address 02:00:00:00:00:0a netns /proc/1/fd/5",
        "link set h9 master switch up",
    ]


def test_a_host_knows_all_others_without_asking() -> None:
    lines = set_up_host(1, 3)
    assert lines[0] == "addr add 10.77.0.2/24 dev eth0"
    assert [line.split()[2] for line in lines if line.startswith("neigh")] == ["10.77.0.1", "10.77.0.3"]


def test_the_congestion_control_comes_with_the_route_once_there_is_one() -> None:
    lines = set_up_host(1, 2, congestion_control="cubic")
    change = "route change 10.77.0.0/24 dev eth0 proto kernel scope link src 10.77.0.2 congctl cubic"
    assert lines.index(change) > lines.index("link set eth0 up")
    assert not any("congctl" in line for line in set_up_host(1, 2))


def test_what_was_made_is_taken_down_at_once() -> None:
    made = [line for line in [*set_up_switch(), *add_link(17, "x")] if line.startswith("link add")]
    assert [line.split()[2] for line in made] == ["switch", port_of(17)]
    assert all(" group 77 " in line for line in made)
    assert remove_links() == ["link del group 77"]


def test_both_ways_to_ask_find_a_name() -> None:
    assert format_hosts_file(2).splitlines() == [
        "10.77.0.1 host0",
        "::ffff:10.77.0.1 host0.lab",
        "10.77.0.2 host1",
        "::ffff:10.77.0.2 host1.lab",
    ]


# Rates


@pytest.mark.parametrize(
    ("rate", "burst"),
    [
        (1e6, 8 << 10),  # never less than a few frames
        (50e6, 25_000),  # 4 ms at this rate
        (1e9, 500_000),
    ],
)
def test_the_bucket_holds_a_moment_of_the_rate(rate: float, burst: int) -> None:
    assert burst_bytes(rate) == burst


def test_the_switch_keeps_ten_milliseconds_and_the_host_never_drops() -> None:
    assert queue_bytes(1e9, is_port=True) == 1_250_000
    assert queue_bytes(1e6, is_port=True) == 64 << 10
    assert queue_bytes(1e9, is_port=False) == 8 << 20
    assert queue_bytes(100e9, is_port=False) == queue_bytes(100e9, is_port=True) == 125_000_000


def test_the_commands() -> None:
    limited = "qdisc replace dev h0 root tbf rate 1000000000bit burst 500000 limit 1250000"
    assert shape_command("h0", 1e9, is_port=True) == limited
    assert shape_command("h0", None, is_port=True) == "qdisc del dev h0 root"
