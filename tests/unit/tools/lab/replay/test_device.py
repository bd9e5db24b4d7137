"""The replayed device: what it hides, what it never hides, and that the two add up."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import pytest

from undertow.tools.lab.replay.device import QUEUE_S, BusyClock, Device, sharpen_sleep


class Machine:
    """Machine with two clocks that only the test moves, and a sleep that may end late."""

    def __init__(self, *, lateness_s: Iterable[float] = ()) -> None:
        self.now_s = 1000.0
        self.cpu_s = 5.0
        self.slept_s: list[float] = []
        self._lateness_s: Iterator[float] = iter(lateness_s)
        self.device = Device(clock=lambda: self.now_s, thread_clock=lambda: self.cpu_s, sleep=self._sleep)
        self._start_s = self.now_s

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept_s.append(seconds)
        self.now_s += seconds + next(self._lateness_s, 0.0)

    def use_cpu(self, seconds: float) -> None:
        """Let the thread compute: both clocks move."""
        self.now_s += seconds
        self.cpu_s += seconds

    def wait(self, seconds: float) -> None:
        """Let the thread wait, for example for the network: only time passes."""
        self.now_s += seconds

    @property
    def passed_s(self) -> float:
        return self.now_s - self._start_s


def test_an_operation_takes_its_time() -> None:
    machine = Machine()
    machine.device.compute(0.25)
    assert machine.passed_s == pytest.approx(0.25)


def test_back_to_back_operations_take_their_sum_although_each_wakes_up_late() -> None:
    machine = Machine(lateness_s=[0.0003, 0.001, 0.00007, 0.002] * 25)
    for _ in range(99):
        machine.device.compute(0.004)
    machine.device.compute(0.004)
    assert machine.passed_s == pytest.approx(100 * 0.004 + 0.002)  # no operation follows the last wake-up


def test_lateness_beyond_one_operation_is_made_up_by_the_next_ones() -> None:
    machine = Machine(lateness_s=[0.03])
    for _ in range(6):
        machine.device.compute(0.01)
    assert machine.passed_s == pytest.approx(0.06)
    assert machine.slept_s == pytest.approx([0.01, 0.01, 0.01])  # three of them returned immediately


def test_an_operation_shorter_than_the_debt_returns_at_once_and_the_rest_is_kept() -> None:
    machine = Machine(lateness_s=[0.01])
    machine.device.compute(0.1)
    machine.device.compute(0.003)
    assert machine.slept_s == pytest.approx([0.1])
    machine.device.compute(0.02)
    assert machine.slept_s == pytest.approx([0.1, 0.013])
    assert machine.passed_s == pytest.approx(0.123)


def test_the_threads_own_computing_is_hidden() -> None:
    machine = Machine()
    for _ in range(10):
        machine.use_cpu(0.002)
        machine.device.compute(0.005)
    assert machine.passed_s == pytest.approx(10 * 0.005)


def test_computing_is_hidden_only_as_far_as_the_queue_reaches() -> None:
    machine = Machine()
    machine.device.compute(0.1)
    machine.use_cpu(QUEUE_S + 0.04)
    machine.device.compute(0.1)
    assert machine.passed_s == pytest.approx(0.2 + 0.04)
    machine.device.compute(0.1)  # the 40 ms are not made up for later
    assert machine.passed_s == pytest.approx(0.3 + 0.04)


def test_lateness_and_computing_share_one_queue() -> None:
    machine = Machine(lateness_s=[QUEUE_S])
    machine.device.compute(0.1)
    machine.use_cpu(QUEUE_S)
    machine.device.compute(0.2)
    assert machine.passed_s == pytest.approx(0.3 + QUEUE_S)


def test_a_long_interruption_is_not_made_up_by_all_that_follows() -> None:
    machine = Machine(lateness_s=[10.0])
    for _ in range(100):
        machine.device.compute(0.01)
    assert machine.passed_s == pytest.approx(100 * 0.01 + 10.0 - QUEUE_S)


def test_many_short_operations_do_not_stretch_the_queue() -> None:
    machine = Machine()
    machine.device.compute(0.1)
    for _ in range(10):
        machine.use_cpu(0.02)
        machine.device.compute(0.001)
    machine.device.compute(0.1)
    # The queue was full at the last of the short operations; only that one and the long one remain.
    assert machine.passed_s == pytest.approx(0.1 + 10 * 0.02 - QUEUE_S + 0.001 + 0.1)


@pytest.mark.parametrize("waited_s", [0.0001, 0.01, 0.06, 3.0])
def test_waiting_is_never_hidden(waited_s: float) -> None:
    machine = Machine()
    for _ in range(5):
        machine.device.compute(0.02)
        machine.wait(waited_s)
    machine.device.compute(0.02)
    assert machine.passed_s == pytest.approx(6 * 0.02 + 5 * waited_s)


def test_whoever_waits_has_caught_up_with_its_lateness() -> None:
    machine = Machine(lateness_s=[0.005])
    machine.device.compute(0.02)
    machine.wait(0.003)  # waiting made up for three of the five milliseconds
    machine.device.compute(0.02)
    assert machine.passed_s == pytest.approx(0.02 + 0.005 + 0.003 + 0.02 - 0.002)


def test_gradients_differ_from_worker_to_worker() -> None:
    assert len({Device(rank=rank).gradient for rank in range(8)}) == 8


def test_of_a_pause_only_the_computing_is_hidden() -> None:
    machine = Machine()
    machine.device.compute(0.02)
    machine.wait(0.5)
    machine.use_cpu(0.004)
    machine.wait(0.25)
    machine.device.compute(0.02)
    assert machine.passed_s == pytest.approx(0.04 + 0.75)


def test_what_was_used_before_the_device_was_made_is_not_hidden() -> None:
    machine = Machine()
    assert machine.cpu_s > 0
    machine.device.compute(0.001)
    assert machine.passed_s == pytest.approx(0.001)


def test_computing_is_hidden_once() -> None:
    machine = Machine()
    machine.device.compute(0.1)
    machine.use_cpu(0.01)
    for _ in range(3):
        machine.device.compute(0.1)
    assert machine.passed_s == pytest.approx(0.4)
    assert machine.slept_s == pytest.approx([0.1, 0.09, 0.1, 0.1])


def test_an_operation_of_no_time_never_sleeps() -> None:
    machine = Machine()
    for _ in range(3):
        machine.device.compute(0.0)
    assert machine.slept_s == []


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
