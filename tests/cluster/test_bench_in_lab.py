"""Bytes in the lab: the kernel's count of a link and the library's own agree."""

from __future__ import annotations

import os

import pytest

from tests.cli.labs import in_lab, needs_lab
from undertow.lab.bench.fleet import Fleet
from undertow.lab.bench.laps import Record
from undertow.lab.bench.messages import Assignment
from undertow.lab.network import Network
from undertow.lab.systems import find_system

HOSTS = 2


def count_bytes(network: Network) -> None:
    assignment = Assignment(model="googlenet", system="undertow", scale=10.0, batch=8)
    record = Record()
    with Fleet(network, find_system("undertow"), assignment, {**os.environ, "UNDERTOW_PLAN": "dense"}) as fleet:
        ready = fleet.wait_until_ready()
        network.shape(1e9)
        fleet.run(3, timeout_s=60)
        for _ in range(2):
            before = network.counters()
            laps = fleet.run(4, timeout_s=60)
            after = network.counters()
            sent = [now.bytes_out - then.bytes_out for then, now in zip(before, after, strict=True)]
            record.add(laps, bytes_out=sent)
    summary = record.summarise()
    assert summary.sent_bytes == pytest.approx(ready.gradient_bytes * 2 * (HOSTS - 1) / HOSTS, rel=0.03)
    assert summary.bytes_out == pytest.approx(summary.sent_bytes, rel=0.03)


@needs_lab
def test_the_kernel_counts_what_undertow_says_it_sent() -> None:
    in_lab(HOSTS, count_bytes)
