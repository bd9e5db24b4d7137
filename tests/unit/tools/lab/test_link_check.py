"""Which links pass their check, and how often a bad one is measured again."""

from __future__ import annotations

import pytest

from tests.support.bench_fakes import FakeProgress
from undertow.errors import LabError
from undertow.tools.lab import link_check
from undertow.tools.lab.link_check import PAYLOAD_SHARE, Measurement, check_links, find_fault
from undertow.tools.lab.network import Counters, Network, open_loopback


def measured(ratio: float, rate: float = 4e9) -> Measurement:
    return Measurement(0, 1, ratio * rate * PAYLOAD_SHARE)


@pytest.mark.parametrize("ratio", [0.951, 0.99, 1.0, 1.049])
def test_a_link_within_five_percent_is_trusted(ratio: float) -> None:
    assert find_fault(measured(ratio), 4e9) is None


def test_a_slow_link_is_named_with_the_cure() -> None:
    assert find_fault(measured(0.73), 4e9) == (
        "the link from host 0 to host 1 carries 2.92 Gbit/s instead of 4 Gbit/s (73.0 %): figures from it would be "
        "wrong. Use a lower --bandwidth on this machine (or, for a bench, a higher --scale)."
    )


def test_a_link_that_is_too_fast_is_a_fault_of_another_kind() -> None:
    fault = find_fault(measured(2.0), 4e9)
    assert fault
    assert "carries 8 Gbit/s instead of 4 Gbit/s (200.0 %)" in fault
    assert "Its shaping has no effect" in fault
    assert "--bandwidth" not in fault


class Links:
    """Fake measurements: the ratio of each link in each try."""

    is_shaped = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *tries: list[float]) -> None:
        self.hosts = [None] * len(tries)
        self.durations: list[float] = []
        self._tries = [iter(ratios) for ratios in tries]
        monkeypatch.setattr(link_check, "measure_link", self._measure)

    def counters(self) -> list[Counters]:
        return []

    def _measure(self, network: Network, link: tuple[int, int], *, duration_s: float) -> Measurement:
        self.durations.append(duration_s)
        return Measurement(*link, next(self._tries[link[0]]) * 1e9 * PAYLOAD_SHARE)


def check(links: Links, rate: float = 1e9) -> float:
    return check_links(links, rate)  # type: ignore[arg-type]


def test_the_worst_link_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    links = Links(monkeypatch, [0.99], [0.97], [1.01])
    assert check(links) == pytest.approx(0.97)
    assert links.durations == [0.4, 0.4, 0.4]


def test_every_link_is_a_lap_however_many_tries_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = FakeProgress()
    check_links(Links(monkeypatch, [0.5, 0.99], [1.0], [1.0]), 1e9, progress)  # type: ignore[arg-type]
    assert progress.done == 3


def test_a_bad_first_try_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    links = Links(monkeypatch, [0.5, 0.99], [1.0])
    assert check(links) == pytest.approx(0.99)
    assert links.durations == [0.4, 1.0, 0.4]


def test_a_link_that_stays_bad_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabError, match=r"from host 1 to host 0 carries 900 Mbit/s instead of 1 Gbit/s \(90.0 %\)"):
        check(Links(monkeypatch, [1.0], [0.5, 0.9, 0.8, 0.7, 0.6]))


def test_a_link_that_carries_next_to_nothing_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    links = Links(monkeypatch, [0.02, 0.03], [])
    with pytest.raises(LabError, match=r"from host 0 to host 1 carries 30 Mbit/s instead of 1 Gbit/s \(3.0 %\)"):
        check(links)
    assert links.durations == [0.4, 1.0]


def test_next_to_nothing_once_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    links = Links(monkeypatch, [0.02, 0.5, 0.02, 0.99], [1.0])
    assert check(links) == pytest.approx(0.99)


def test_a_slow_link_is_measured_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    links = Links(monkeypatch, [1e-3], [1e-3])  # of the fake's 1 Gbit/s
    check(links, 1e6)
    assert links.durations == [4.0, 4.0]


def test_without_links_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(Links(monkeypatch, [])) == 1.0  # one host
    with open_loopback(4) as network:
        assert check_links(network, 1e9) == 1.0
