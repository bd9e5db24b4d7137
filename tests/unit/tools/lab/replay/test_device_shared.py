"""A replayed device that several jobs share: who waits for whom, and that nothing changes for a job alone."""

from __future__ import annotations

import fcntl
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.replayed_devices import ClockedWorker
from undertow.tools.lab.replay.device import QUEUE_S, SharedOccupancy, make_devices, place_device


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_devices(tmp_path, 2)
    return tmp_path


def open_device(folder: Path, host: int = 0) -> SharedOccupancy:
    return SharedOccupancy(place_device(folder, host))


def test_who_is_alone_notices_nothing(folder: Path) -> None:
    lateness_s = [0.0003, 0.03, 0.0, 0.07, 0.002]
    own, shared = ClockedWorker(None, lateness_s=lateness_s), ClockedWorker(open_device(folder), lateness_s=lateness_s)
    for worker in (own, shared):
        for number in range(40):
            worker.device.compute(0.01 * (number % 4))
            worker.use_cpu(0.003 * (number % 3) + (0.06 if number == 20 else 0.0))
            worker.wait_until(worker.now_s + 0.02 * (number % 5 == 0))
    assert shared.slept_s == pytest.approx(own.slept_s)
    assert shared.now_s == pytest.approx(own.now_s)


def test_an_operation_waits_until_the_device_is_free(folder: Path) -> None:
    first, second = ClockedWorker(open_device(folder)), ClockedWorker(open_device(folder))
    first.device.compute(0.1)
    second.wait_until(1000.02)
    second.device.compute(0.05)
    assert second.now_s == pytest.approx(1000.15)


def test_the_devices_of_two_hosts_have_nothing_to_do_with_each_other(folder: Path) -> None:
    first, second = ClockedWorker(open_device(folder, 0)), ClockedWorker(open_device(folder, 1))
    first.device.compute(0.1)
    second.device.compute(0.05)
    assert second.now_s == pytest.approx(1000.05)


def test_two_that_never_stop_get_every_other_operation(folder: Path) -> None:
    first, second = ClockedWorker(open_device(folder)), ClockedWorker(open_device(folder))
    for _ in range(10):
        first.device.compute(0.01)
        second.device.compute(0.03)
    assert first.now_s == pytest.approx(1000 + 10 * 0.04 - 0.03)
    assert second.now_s == pytest.approx(1000 + 10 * 0.04)


def test_a_gap_that_nobody_used_is_lost(folder: Path) -> None:
    first, second = ClockedWorker(open_device(folder)), ClockedWorker(open_device(folder))
    first.device.compute(0.1)
    second.wait_until(1000.5)
    second.device.compute(0.05)
    assert second.now_s == pytest.approx(1000.55)


def test_hidden_time_begins_an_operation_earlier_while_the_device_was_free(folder: Path) -> None:
    worker = ClockedWorker(open_device(folder))
    worker.device.compute(0.1)
    worker.use_cpu(0.02)
    worker.device.compute(0.1)
    assert worker.now_s == pytest.approx(1000.2)


def test_hidden_time_never_begins_an_operation_before_the_device_was_free(folder: Path) -> None:
    first, second = ClockedWorker(open_device(folder)), ClockedWorker(open_device(folder))
    first.device.compute(0.1)
    second.device.compute(0.005)  # begins at 1000.1
    first.use_cpu(0.02)  # hidden: it would have begun at 1000.1
    first.device.compute(0.1)
    assert first.now_s == pytest.approx(1000.205)


def test_lateness_after_standing_in_line_is_made_up(folder: Path) -> None:
    first, second = ClockedWorker(open_device(folder)), ClockedWorker(open_device(folder), lateness_s=[0.01])
    first.device.compute(0.1)
    second.device.compute(0.05)  # from 1000.1 to 1000.15; the wake-up is 10 ms late
    second.device.compute(0.05)
    assert second.now_s == pytest.approx(1000.2)


def test_waiting_for_something_else_is_not_hidden(folder: Path) -> None:
    worker = ClockedWorker(open_device(folder))
    worker.device.compute(0.1)
    worker.wait_until(1000.3)
    worker.device.compute(0.1)
    assert worker.now_s == pytest.approx(1000.4)


def test_a_lock_that_takes_long_does_not_make_the_operation_longer() -> None:
    class Slow:
        def occupy(self, begin_s: float, seconds: float) -> float:
            worker.wait_until(worker.now_s + 0.02)
            return begin_s + seconds

    worker = ClockedWorker(Slow())
    worker.device.compute(0.1)
    assert worker.slept_s == pytest.approx([0.08])
    worker.device.compute(0.01)  # taking the lock takes longer: the next operation makes up for it
    worker.device.compute(0.1)
    assert worker.now_s == pytest.approx(1000.21)


def test_an_operation_of_no_time_needs_no_device(folder: Path) -> None:
    first, second = ClockedWorker(open_device(folder)), ClockedWorker(open_device(folder))
    first.device.compute(0.1)
    second.device.compute(0.0)
    assert second.slept_s == []


def test_what_is_hidden_is_limited_by_the_queue(folder: Path) -> None:
    worker = ClockedWorker(open_device(folder))
    worker.device.compute(0.1)
    worker.use_cpu(QUEUE_S + 0.04)
    worker.device.compute(0.1)
    assert worker.now_s == pytest.approx(1000.24)


def test_nobody_gets_time_that_somebody_else_takes_at_the_same_moment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder of the lock goes first, and the worker that waited for the lock sees its reservation."""
    with closing(open_device(folder)) as first, closing(open_device(folder)) as second:
        held: list[int] = []

        def wait_for_lock(file: int, operation: int) -> None:
            held.append(operation)
            if held == [fcntl.LOCK_EX]:
                second.occupy(0.0, 5.0)
            flock(file, operation)

        flock = fcntl.flock
        monkeypatch.setattr(fcntl, "flock", wait_for_lock)
        assert first.occupy(0.0, 1.0) == 6.0
        assert held == [fcntl.LOCK_EX, fcntl.LOCK_EX, fcntl.LOCK_UN, fcntl.LOCK_UN]


def test_the_lock_is_one_for_all_workers(folder: Path) -> None:
    with closing(open_device(folder)) as first, closing(open_device(folder)) as second:
        fcntl.flock(first._file, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(second._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
