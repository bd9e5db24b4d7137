"""A link's bucket and queues follow from its rate."""

from __future__ import annotations

import pytest

from undertow.lab.shaping import burst_bytes, host_queue_bytes, port_queue_bytes, shape_command, unshape_command


@pytest.mark.parametrize(
    ("rate", "burst"),
    [
        (1e6, 8 << 10),  # never less than some frames
        (50e6, 25_000),  # 4 ms of it
        (1e9, 500_000),
    ],
)
def test_the_bucket_holds_a_moment_of_the_rate(rate: float, burst: int) -> None:
    assert burst_bytes(rate) == burst


def test_the_switch_keeps_ten_milliseconds_and_the_host_never_drops() -> None:
    assert port_queue_bytes(1e9) == 1_250_000
    assert port_queue_bytes(1e6) == 64 << 10
    assert host_queue_bytes(1e9) == 8 << 20
    assert host_queue_bytes(100e9) == port_queue_bytes(100e9) == 125_000_000


def test_the_commands() -> None:
    limited = "qdisc replace dev h0 root tbf rate 1000000000bit burst 500000 limit 1250000"
    assert shape_command("h0", 1e9, queue_bytes=1_250_000) == limited
    assert unshape_command("h0") == "qdisc del dev h0 root"
