"""Virtual links: times that can be computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from undertow.errors import ConfigError
from undertow.tools.sim.topology import LOCAL_BYTES_PER_S, LOCAL_LATENCY_S, Fabric, Host, Topology
from undertow.tools.virtual.world import Clock

MEGABYTE = 1_000_000
RATE_BITS = 8e6  # a megabyte per second
TURN_S = 0.002  # streams take turns: that much earlier or later one of them may end


class Net:
    """Messages by name, and when the last byte of each arrived."""

    def __init__(self, *hosts: Host, latency_s: float = 0.0, **options: Any) -> None:
        self.clock = Clock()
        topology = Topology(hosts=hosts, latency_s=latency_s, goodput=1.0, **options)
        self.fabric = Fabric(self.clock, topology)
        self.arrivals_s: dict[str, float] = {}  # in the order in which they come

    def send(self, name: str, sender: int, receiver: int, size_bytes: int = MEGABYTE, *, at_s: float = 0.0) -> None:
        self.clock.at(at_s, self.fabric.send, sender, receiver, size_bytes, self._expect, name)

    def run(self) -> dict[str, float]:
        self.clock.run()
        return self.arrivals_s

    def _expect(self, time_s: float, name: str) -> None:
        assert time_s >= self.clock.now_s
        self.clock.at(time_s, self._arrive, name)

    def _arrive(self, name: str) -> None:
        self.arrivals_s[name] = self.clock.now_s


def make_net(hosts: int, **options: Any) -> Net:
    """Equal hosts at one switch."""
    return Net(*[Host(bandwidth_bits_per_s=RATE_BITS)] * hosts, **options)


# One message, one stream


def test_a_message_alone_takes_its_bytes_and_the_latency_once() -> None:
    net = make_net(2, latency_s=0.25)
    net.send("a", 0, 1)
    assert net.run() == {"a": pytest.approx(1.25)}


def test_messages_of_one_stream_follow_each_other_in_their_order() -> None:
    net = make_net(2, latency_s=0.25)
    for name, size_bytes in (("large", MEGABYTE), ("small", 1000), ("half", MEGABYTE // 2)):
        net.send(name, 0, 1, size_bytes)
    expected = {"large": pytest.approx(1.25), "small": pytest.approx(1.251), "half": pytest.approx(1.751)}
    assert net.run() == expected
    assert list(net.arrivals_s) == ["large", "small", "half"]


def test_a_link_that_had_nothing_to_do_does_not_save_its_time() -> None:
    net = make_net(2)
    net.send("early", 0, 1, at_s=0.0)
    net.send("late", 0, 1, at_s=5.0)
    net.send("behind", 0, 1, at_s=5.5)
    assert net.run() == {"early": pytest.approx(1), "late": pytest.approx(6), "behind": pytest.approx(7)}


@pytest.mark.parametrize(("sender", "receiver"), [(0, 1), (1, 0)])
def test_the_slower_of_two_links_decides(sender: int, receiver: int) -> None:
    net = Net(Host(bandwidth_bits_per_s=RATE_BITS), Host(bandwidth_bits_per_s=RATE_BITS / 4), latency_s=0.25)
    net.send("a", sender, receiver)
    assert net.run() == {"a": pytest.approx(4.25, abs=1e-4)}


# Streams that meet


def test_two_streams_get_half_of_a_downlink_each() -> None:
    net = make_net(3)
    net.send("short", 0, 2)
    net.send("long", 1, 2, 3 * MEGABYTE)
    # Until the short one has ended each has half; then the long one has the whole link.
    assert net.run() == {"short": pytest.approx(2, abs=TURN_S), "long": pytest.approx(4, abs=TURN_S)}


def test_three_streams_get_a_third_of_a_downlink_each() -> None:
    net = make_net(4)
    for sender, size in enumerate((1, 2, 2)):
        net.send(f"{sender}", sender, 3, size * MEGABYTE)
    assert net.run()["0"] == pytest.approx(3, abs=2 * TURN_S)
    assert net.arrivals_s["1"] == pytest.approx(5, abs=2 * TURN_S)
    assert net.arrivals_s["2"] == pytest.approx(5, abs=2 * TURN_S)


def test_two_streams_get_half_of_an_uplink_each() -> None:
    net = make_net(3)
    net.send("long", 0, 1, 3 * MEGABYTE)
    net.send("short", 0, 2)
    assert net.run() == {"short": pytest.approx(2, abs=TURN_S), "long": pytest.approx(4, abs=TURN_S)}


def test_many_messages_of_one_stream_do_not_starve_another() -> None:
    net = Net(*[Host(bandwidth_bits_per_s=10 * RATE_BITS)] * 3)
    for number in range(500):
        net.send(f"{number}", 0, 1, 2000)
    net.send("other", 0, 2, 20_000)
    # In turns, 5000 of its bytes and one of the others.
    assert net.run()["other"] == pytest.approx(0.0028, abs=0.0005)
    assert net.arrivals_s["499"] == pytest.approx(0.102, abs=0.0005)


def test_streams_that_do_not_meet_do_not_know_of_each_other() -> None:
    net = make_net(4)
    net.send("a", 0, 1)
    net.send("b", 2, 3)
    assert net.run() == {"a": pytest.approx(1), "b": pytest.approx(1)}


def test_both_directions_at_once_take_no_longer_than_one() -> None:
    net = make_net(2)
    net.send("there", 0, 1)
    net.send("back", 1, 0)
    assert net.run() == {"there": pytest.approx(1), "back": pytest.approx(1)}


# Racks


def make_racks(uplink_share: float) -> Net:
    """Hosts 0 to 3 in the left rack, 4 to 7 in the right; uplinks as multiples of a host's link."""
    hosts = [Host(bandwidth_bits_per_s=RATE_BITS, rack=rack) for rack in ("left",) * 4 + ("right",) * 4]
    return Net(*hosts, uplinks_bits_per_s=dict.fromkeys(("left", "right"), uplink_share * RATE_BITS))


def test_a_narrow_uplink_limits_what_crosses_it_and_not_what_stays_inside() -> None:
    net = make_racks(1)
    net.send("across", 0, 4)
    net.send("beside", 1, 5)
    net.send("inside", 2, 3)
    expected = {"inside": pytest.approx(1), "across": pytest.approx(2, abs=TURN_S)}
    assert net.run() == expected | {"beside": pytest.approx(2, abs=TURN_S)}


def test_a_wide_uplink_is_not_in_the_way() -> None:
    net = make_racks(2)
    net.send("across", 0, 4)
    net.send("beside", 1, 5)
    assert net.run() == {"across": pytest.approx(1, abs=TURN_S), "beside": pytest.approx(1, abs=TURN_S)}


def test_an_uplink_is_full_duplex_too() -> None:
    net = make_racks(0.5)
    net.send("there", 0, 4)
    net.send("back", 5, 1)
    assert net.run() == {"there": pytest.approx(2, abs=TURN_S), "back": pytest.approx(2, abs=TURN_S)}


def test_the_way_into_a_rack_is_as_narrow_as_the_way_out() -> None:
    hosts = [Host(bandwidth_bits_per_s=RATE_BITS, rack=rack) for rack in ("a", "b", "c", "c")]
    net = Net(*hosts, uplinks_bits_per_s={"a": RATE_BITS, "b": RATE_BITS, "c": RATE_BITS})
    net.send("from a", 0, 2)
    net.send("from b", 1, 3)
    assert net.run() == {"from a": pytest.approx(2, abs=TURN_S), "from b": pytest.approx(2, abs=TURN_S)}


# Several workers of one host


def make_crowded() -> Net:
    """Workers 0 and 1 on one host, 2 and 3 alone."""
    alone = Host(bandwidth_bits_per_s=RATE_BITS)
    return Net(Host(bandwidth_bits_per_s=RATE_BITS, workers=2), alone, alone)


def test_workers_are_numbered_host_by_host() -> None:
    hosts = tuple(Host(bandwidth_bits_per_s=1e9, workers=workers) for workers in (2, 1, 3))
    assert Topology(hosts=hosts).places == [0, 0, 1, 2, 2, 2]


def test_workers_of_one_host_share_its_link() -> None:
    net = make_crowded()
    net.send("first", 0, 2)
    net.send("second", 1, 3)
    assert net.run() == {"first": pytest.approx(2, abs=TURN_S), "second": pytest.approx(2, abs=TURN_S)}


def test_workers_of_one_host_talk_to_each_other_without_its_link() -> None:
    net = make_crowded()
    net.send("away", 0, 2)
    net.send("beside", 0, 1)
    local_s = LOCAL_LATENCY_S + MEGABYTE / LOCAL_BYTES_PER_S
    assert net.run() == {"beside": pytest.approx(local_s), "away": pytest.approx(1)}
    assert net.fabric.bytes_out == [MEGABYTE, 0, 0]


def test_messages_between_workers_of_one_host_keep_their_order() -> None:
    net = make_crowded()
    net.send("large", 0, 1)
    net.send("small", 0, 1, 100)
    net.run()
    assert list(net.arrivals_s) == ["large", "small"]


# Counts, and what is not possible


def test_bytes_are_counted_where_they_leave() -> None:
    net = make_crowded()
    for name, sender, receiver, size_bytes in (("a", 0, 2, 5), ("b", 1, 2, 70), ("c", 2, 3, 4000), ("d", 2, 0, 9000)):
        net.send(name, sender, receiver, size_bytes)
    net.run()
    assert net.fabric.bytes_out == [75, 13_000, 0]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"bandwidth_bits_per_s": 0.0}, "a link of 0 bit/s"),
        ({"slowdown": 0.0}, "a slowdown of 0"),
        ({"workers": 0}, "0 workers"),
    ],
)
def test_impossible_hosts_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Host(**{"bandwidth_bits_per_s": 1e9} | wrong)
