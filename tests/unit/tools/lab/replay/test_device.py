"""The replayed device: what it hides, what it never hides, and that the two add up."""

from __future__ import annotations

import os

import pytest

from tests.support.replayed_devices import ClockedWorker
from undertow.tools.lab.replay.device import QUEUE_S, BusyClock, Device, sharpen_sleep


def test_an_operation_takes_its_time() -> None:
    worker = ClockedWorker()
    worker.device.compute(0.25)
    assert worker.passed_s == pytest.approx(0.25)


def test_back_to_back_operations_take_their_sum_although_each_wakes_up_late() -> None:
    worker = ClockedWorker(lateness_s=[0.0003, 0.001, 0.00007, 0.002] * 25)
    for _ in range(99):
        worker.device.compute(0.004)
    worker.device.compute(0.004)
    assert worker.passed_s == pytest.approx(100 * 0.004 + 0.002)  # no operation follows the last wake-up


def test_lateness_beyond_one_operation_is_made_up_by_the_next_ones() -> None:
    worker = ClockedWorker(lateness_s=[0.03])
    for _ in range(6):
        worker.device.compute(0.01)
    assert worker.passed_s == pytest.approx(0.06)
    assert worker.slept_s == pytest.approx([0.01, 0.01, 0.01])  # three of them returned immediately


def test_an_operation_shorter_than_the_debt_returns_at_once_and_the_rest_is_kept() -> None:
    worker = ClockedWorker(lateness_s=[0.01])
    worker.device.compute(0.1)
    worker.device.compute(0.003)
    assert worker.slept_s == pytest.approx([0.1])
    worker.device.compute(0.02)
    assert worker.slept_s == pytest.approx([0.1, 0.013])
    assert worker.passed_s == pytest.approx(0.123)


def test_the_threads_own_computing_is_hidden() -> None:
    worker = ClockedWorker()
    for _ in range(10):
        worker.use_cpu(0.002)
        worker.device.compute(0.005)
    assert worker.passed_s == pytest.approx(10 * 0.005)


def test_computing_is_hidden_only_as_far_as_the_queue_reaches() -> None:
    worker = ClockedWorker()
    worker.device.compute(0.1)
    worker.use_cpu(QUEUE_S + 0.04)
    worker.device.compute(0.1)
    assert worker.passed_s == pytest.approx(0.2 + 0.04)
    worker.device.compute(0.1)  # the 40 ms are not made up for later
    assert worker.passed_s == pytest.approx(0.3 + 0.04)


def test_lateness_and_computing_share_one_queue() -> None:
    worker = ClockedWorker(lateness_s=[QUEUE_S])
    worker.device.compute(0.1)
    worker.use_cpu(QUEUE_S)
    worker.device.compute(0.2)
    assert worker.passed_s == pytest.approx(0.3 + QUEUE_S)


def test_a_long_interruption_is_not_made_up_by_all_that_follows() -> None:
    worker = ClockedWorker(lateness_s=[10.0])
    for _ in range(100):
        worker.device.compute(0.01)
    assert worker.passed_s == pytest.approx(100 * 0.01 + 10.0 - QUEUE_S)


def test_many_short_operations_do_not_stretch_the_queue() -> None:
    worker = ClockedWorker()
    worker.device.compute(0.1)
    for _ in range(10):
        worker.use_cpu(0.02)
        worker.device.compute(0.001)
    worker.device.compute(0.1)
    # The queue was full at the last of the short operations; only that one and the long one remain.
    assert worker.passed_s == pytest.approx(0.1 + 10 * 0.02 - QUEUE_S + 0.001 + 0.1)


@pytest.mark.parametrize("waited_s", [0.0001, 0.01, 0.06, 3.0])
def test_waiting_is_never_hidden(waited_s: float) -> None:
    worker = ClockedWorker()
    for _ in range(5):
        worker.device.compute(0.02)
        worker.wait(waited_s)
    worker.device.compute(0.02)
    assert worker.passed_s == pytest.approx(6 * 0.02 + 5 * waited_s)


def test_whoever_waits_has_caught_up_with_its_lateness() -> None:
    worker = ClockedWorker(lateness_s=[0.005])
    worker.device.compute(0.02)
    worker.wait(0.003)  # waiting made up for three of the five milliseconds
    worker.device.compute(0.02)
    assert worker.passed_s == pytest.approx(0.02 + 0.005 + 0.003 + 0.02 - 0.002)


def test_gradients_differ_from_worker_to_worker() -> None:
    assert len({Device(rank=rank).gradient for rank in range(8)}) == 8


def test_of_a_pause_only_the_computing_is_hidden() -> None:
    worker = ClockedWorker()
    worker.device.compute(0.02)
    worker.wait(0.5)
    worker.use_cpu(0.004)
    worker.wait(0.25)
    worker.device.compute(0.02)
    assert worker.passed_s == pytest.approx(0.04 + 0.75)


def test_what_was_used_before_the_device_was_made_is_not_hidden() -> None:
    worker = ClockedWorker()
    assert worker.cpu_s > 0
    worker.device.compute(0.001)
    assert worker.passed_s == pytest.approx(0.001)


def test_computing_is_hidden_once() -> None:
    worker = ClockedWorker()
    worker.device.compute(0.1)
    worker.use_cpu(0.01)
    for _ in range(3):
        worker.device.compute(0.1)
    assert worker.passed_s == pytest.approx(0.4)
    assert worker.slept_s == pytest.approx([0.1, 0.09, 0.1, 0.1])


def test_an_operation_of_no_time_never_sleeps() -> None:
    worker = ClockedWorker()
    for _ in range(3):
        worker.device.compute(0.0)
    assert worker.slept_s == []


def test_sharper_sleep_can_be_asked_for_anywhere() -> None:
    sharpen_sleep()


def test_standing_in_line_for_a_core_counts_as_computing() -> None:
    class Crowded(BusyClock):
        delay_s = 0.0

        def _delay_s(self) -> float:
            return self.delay_s

    clock = Crowded()
    before_s = clock()
    clock.delay_s = 5.0
    assert 5.0 <= clock() - before_s < 6.0


def test_the_line_is_read_from_the_kernel() -> None:
    clock = BusyClock()
    os.dup2(_file_with(b"123456 2500000000 7\n"), clock._delays)
    assert clock._delay_s() == 2.5


def test_a_kernel_without_these_figures_does_no_harm() -> None:
    clock = BusyClock()
    os.dup2(_file_with(b""), clock._delays)
    assert clock._delay_s() == 0.0


def _file_with(content: bytes) -> int:
    fd = os.memfd_create("schedstat")
    os.write(fd, content)
    return fd
