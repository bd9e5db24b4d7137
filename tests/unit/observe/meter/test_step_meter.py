"""The step meter: steps, waits, layers and bytes of the last seconds, for steps of any order and length."""

from __future__ import annotations

import pytest

from undertow.engine.core.frames import Kind
from undertow.observe.meter import status_report
from undertow.observe.meter.status_report import LONGEST_NAME, Activity
from undertow.observe.meter.step_meter import WINDOW_S, StepMeter
from undertow.tracing import events
from undertow.tracing.events import TraceEvent


def make_meter() -> StepMeter:
    return StepMeter(rank=3, host="a", now_s=0.0)


def take_step(number: int, began_s: float, ended_s: float) -> list[TraceEvent]:
    return [events.PassBegan(began_s, 0, number), events.PassEnded(ended_s, 0, number)]


def test_a_worker_without_events_is_starting() -> None:
    first = make_meter().read(1.0)
    assert (first.state, first.steps, first.steps_per_s, first.wait_share) == (Activity.STARTING, 0, 0.0, 0.0)
    assert (first.rank, first.host, first.uptime_s) == (3, "a", 1.0)


def test_every_report_has_a_higher_number() -> None:
    meter = make_meter()
    assert [meter.read(float(second)).sequence for second in range(1, 4)] == [1, 2, 3]


def test_steps_are_those_of_the_first_model_that_trains() -> None:
    meter = make_meter()
    for number in range(1, 4):
        meter.take(take_step(number, number - 0.5, number))
        meter.take([events.PassBegan(number + 0.1, 1, number), events.PassEnded(number + 0.2, 1, number)])
    assert meter.read(4.0).steps == 3


def test_steps_are_counted_and_their_rate_is_from_end_to_end() -> None:
    meter = make_meter()
    for number in range(1, 21):
        meter.take(take_step(number, number - 0.5, number))
        read = meter.read(number + 0.2)
    assert read.steps == 20
    assert read.state is Activity.COMPUTING
    assert read.steps_per_s == pytest.approx(1.0)


def test_the_rate_is_of_the_last_seconds() -> None:
    meter = make_meter()
    for number in range(1, 11):  # one per second, then ten per second
        meter.take(take_step(number, number - 0.5, number))
        meter.read(float(number))
    for second in range(10, 10 + int(WINDOW_S) + 2):
        for part in range(1, 11):
            meter.take(take_step(99, second + part / 10 - 0.05, second + part / 10))
        read = meter.read(second + 1.0)
    assert read.steps_per_s == pytest.approx(10.0)


def test_a_step_that_is_longer_than_the_window_has_a_rate_and_a_slowest_layer() -> None:
    meter = make_meter()
    for second in range(1, 56):  # steps end shortly before 19 and 39
        if second % 20 == 1:
            meter.take([events.PassBegan(second - 0.5, 0, 1)])
        if second % 20 == 19:
            meter.take([events.Hooked(second - 0.5, second - 0.4, "fc.weight"), events.PassEnded(second - 0.3, 0, 1)])
        read = meter.read(float(second))
    assert read.steps_per_s == pytest.approx(1 / 20)
    assert read.layer == "fc"
    assert read.layer_ms_per_step == pytest.approx(18_000)


def test_the_rate_falls_when_a_step_is_overdue() -> None:
    meter = make_meter()
    for number in range(1, 11):
        meter.take(take_step(number, number - 0.5, number))
        meter.read(float(number))
    rates = [meter.read(10.0 + second).steps_per_s for second in range(1, 60)]
    assert rates[0] == pytest.approx(1.0)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.2


def test_waits_are_a_share_of_the_time_with_the_longest_cause() -> None:
    meter = make_meter()
    meter.take(take_step(1, 0.1, 1.0))
    meter.take([events.Waited(1.0, 1.1, "gradients", "fc.bias"), events.Waited(1.2, 1.6, "gradients", "conv1.weight")])
    meter.take(take_step(2, 1.6, 2.0))
    read = meter.read(2.0)
    assert read.wait_share == pytest.approx(0.25)
    assert read.waited_s == pytest.approx(0.5)
    assert read.waits_for == "conv1.weight"
    assert read.wait_ms_per_step == pytest.approx(250.0)


def test_a_wait_without_a_tensor_goes_by_its_reason() -> None:
    meter = make_meter()
    meter.take([events.Waited(0.0, 0.5, "barrier")])
    assert meter.read(1.0).waits_for == "barrier"


def test_a_current_wait_counts_once() -> None:
    meter = make_meter()
    meter.take(take_step(1, 0.1, 1.0))
    waiting = meter.read(4.0, standstill=("conv1.weight", 2.0))
    assert (waiting.state, waiting.stands_for, waiting.stands_s) == (Activity.WAITING, "conv1.weight", 2.0)
    assert waiting.wait_share == pytest.approx(0.5)
    meter.take([events.Waited(2.0, 4.5, "", "conv1.weight")])
    assert meter.read(5.0).waited_s == pytest.approx(2.5)


def test_another_jobs_turn_is_no_wait_for_the_network() -> None:
    meter = make_meter()
    meter.take([events.TurnAwaited(0.5, 1.0)])
    read = meter.read(2.0)
    assert (read.turn_share, read.wait_share) == (0.25, 0.0)


def test_a_layers_time_is_without_its_waits_and_the_layers_inside() -> None:
    meter = make_meter()
    meter.take(
        [
            events.Forward(0.0, 0.1, "first"),
            events.Waited(0.25, 0.45, "", "inner.weight"),
            events.Forward(0.2, 0.5, "inner"),
            events.Forward(0.1, 0.6, "outer"),
        ]
    )
    meter.take(take_step(1, 0.7, 0.8))
    read = meter.read(1.0)
    assert read.layer == "outer"
    assert read.layer_ms_per_step == pytest.approx(200.0)


def test_backward_is_from_gradient_to_gradient_and_adds_to_the_forward() -> None:
    meter = make_meter()
    meter.take(
        [
            events.Forward(0.0, 0.01, "conv"),
            events.PassBegan(0.1, 0, 1),
            events.Hooked(0.2, 0.3, "fc.bias"),
            events.TurnAwaited(0.3, 0.35),
            events.Hooked(0.4, 0.5, "fc.weight"),
            events.Hooked(0.6, 0.6, "conv.weight"),
            events.PassEnded(0.6, 0, 1),
        ]
    )
    read = meter.read(1.0)
    assert read.layer == "fc"
    assert read.layer_ms_per_step == pytest.approx(150.0)


def test_bytes_are_counted_in_both_directions_and_the_link_rate_is_kept() -> None:
    meter = make_meter()
    meter.take([events.Linked(0.1, 125e6)])
    meter.take([events.Sent(0.1, 0.2, peer=1, kind=Kind.PUSH, key=7, round=1, size_bytes=3000)])
    meter.take([events.Received(0.1, 0.2, 1, Kind.RESULT, 7, 1, 1000)])
    read = meter.read(2.0)
    assert (read.bytes_out, read.bytes_in) == (3000, 1000)
    assert (read.out_bytes_per_s, read.in_bytes_per_s, read.link_bytes_per_s) == (1500.0, 500.0, 125e6)
    assert read.state is Activity.COMPUTING  # without steps, traffic shows that the worker has started


def test_a_report_with_long_names_fits_in_a_datagram() -> None:
    meter = StepMeter(rank=0, host="h" * 9000, now_s=0.0)
    meter.take([events.Waited(0.0, 0.5, "", "w" * 9000), events.Forward(0.5, 0.6, "l" * 9000), *take_step(1, 0.7, 0.9)])
    read = meter.read(1.0, standstill=("s" * 9000, 0.9), has_ended=True)
    assert {len(read.host), len(read.waits_for), len(read.layer), len(read.stands_for)} == {LONGEST_NAME}
    assert read.state is Activity.ENDED
    assert len(status_report.encode(read)) < 2000
    assert status_report.decode(status_report.encode(read)) == read


def test_other_events_are_ignored() -> None:
    meter = make_meter()
    meter.take([events.Written(0.1, 0, 1, 1, 1), events.Summed(0.1, 0.2, 1, 1)])
    assert meter.read(1.0).state is Activity.STARTING
