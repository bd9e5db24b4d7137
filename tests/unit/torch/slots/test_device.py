"""The logic of copies from and to a device, on fake streams that run only when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from undertow.engine.client.group import ConnectedGroup
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import KeySpec, Op
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Slice, TensorRange
from undertow.sizing import Sizes
from undertow.torch.slots.device import (
    DeviceCopier,
    HostCopier,
    choose_accelerator,
    copier_for,
    find_free_bytes,
    host_memory,
    name_device,
    remember_stream,
    seed_accelerator,
)

DEVICE = torch.device("cuda", 1)


class Stream:
    """A fake stream: does its work in order, and nothing before `run`."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def enqueue(self, work: Callable[[], None]) -> None:
        self.work.append(work)

    def wait_stream(self, other: Stream) -> None:
        awaited = len(other.work)
        self.enqueue(lambda: other.run(awaited))

    def run(self, until: int | None = None) -> None:
        """Do up to this number of queued items, each once."""
        for position, work in enumerate(self.work[:until]):
            self.work[position] = lambda: None
            work()


class Event:
    def __init__(self) -> None:
        self.happened = False

    def record(self, stream: Stream) -> None:
        stream.enqueue(lambda: setattr(self, "happened", True))

    def query(self) -> bool:
        return self.happened


class Streams:
    """A fake of torch.cuda: one current stream per device, and others."""

    Event = Event

    def __init__(self) -> None:
        self.compute = Stream()
        self.chosen = self.compute
        self.asked_for: set[torch.device] = set()

    def current_stream(self, device: torch.device) -> Stream:
        self.asked_for.add(device)
        return self.chosen

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802
        self.asked_for.add(device)
        return Stream()

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.chosen = stream
        yield
        self.chosen = self.compute


class DeviceTensor:
    """Memory that the streams write and read; `value` is its current content."""

    def __init__(self, streams: Streams, value: int = 0) -> None:
        self.streams = streams
        self.value = value
        self.device = DEVICE
        self.used_by: list[Stream] = []

    def copy_(self, source: DeviceTensor, *, non_blocking: bool) -> None:
        assert non_blocking
        self.streams.chosen.enqueue(lambda: setattr(self, "value", source.value))

    def record_stream(self, stream: Stream) -> None:
        self.used_by.append(stream)


@pytest.fixture
def streams() -> Streams:
    return Streams()


@pytest.fixture
def copier(streams: Streams) -> Any:
    return DeviceCopier(streams, DEVICE)


def test_only_a_copy_out_waits_for_the_computation(streams: Streams, copier: Any) -> None:
    gradient, host = DeviceTensor(streams), DeviceTensor(streams)
    streams.compute.enqueue(lambda: setattr(gradient, "value", 7))
    is_done = copier.out(gradient, host)
    assert len(streams.compute.work) == 1  # the computation continues concurrently
    assert not is_done()
    copier._side.run()
    assert is_done()
    assert host.value == 7


def test_results_of_another_stream_are_read_after_it(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: streams)
    theirs, made, read = Stream(), DeviceTensor(streams), DeviceTensor(streams)
    with streams.stream(theirs):
        theirs.enqueue(lambda: setattr(made, "value", 7))
        follow = remember_stream((made,))  # type: ignore[arg-type]
    assert follow() == (made,)
    read.copy_(made, non_blocking=True)
    streams.compute.run()
    assert read.value == 7
    assert made.used_by == [streams.compute]


def test_results_of_the_same_stream_or_the_host_need_no_wait(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: streams)
    made = DeviceTensor(streams)
    for made.device in (DEVICE, torch.device("cpu")):
        assert remember_stream((made,))() == (made,)  # type: ignore[arg-type]
    assert not streams.compute.work
    assert not made.used_by


def test_a_copy_out_keeps_the_gradients_memory_alive(streams: Streams, copier: Any) -> None:
    gradient = DeviceTensor(streams)
    copier.out(gradient, DeviceTensor(streams))
    assert gradient.used_by == [copier._side]


def test_the_computation_after_a_copy_back_sees_the_result(streams: Streams, copier: Any) -> None:
    gradient, host, seen = DeviceTensor(streams, 1), DeviceTensor(streams, 9), []
    streams.compute.enqueue(lambda: seen.append(gradient.value))
    copier.back(host, gradient)
    streams.compute.enqueue(lambda: seen.append(gradient.value))
    streams.compute.run()
    assert seen == [1, 9]  # earlier work had the old value, later work has the new one
    assert gradient.used_by == [copier._side]


def test_a_copy_back_waits_for_uses_of_the_old_value(streams: Streams, copier: Any) -> None:
    gradient, seen = DeviceTensor(streams, 1), []
    streams.compute.enqueue(lambda: seen.append(gradient.value))
    copier.back(DeviceTensor(streams, 9), gradient)
    copier._side.run()
    assert seen == [1]
    assert gradient.value == 9


def test_copies_out_follow_earlier_copies_back_of_the_same_memory(streams: Streams, copier: Any) -> None:
    gradient, host = DeviceTensor(streams), DeviceTensor(streams, 9)
    copier.back(host, gradient)
    streams.compute.enqueue(lambda: setattr(gradient, "value", 5))
    is_done = copier.out(gradient, host)
    copier._side.run()
    assert is_done()
    assert (gradient.value, host.value) == (5, 5)


def test_the_device_is_passed_explicitly(streams: Streams, copier: Any) -> None:
    copier.out(DeviceTensor(streams), DeviceTensor(streams))
    copier.back(DeviceTensor(streams), DeviceTensor(streams))
    assert streams.asked_for == {DEVICE}


def test_copies_on_the_host_are_immediate() -> None:
    copier = copier_for(torch.device("cpu"))
    assert isinstance(copier, HostCopier)
    target = torch.zeros(3)
    assert copier.out(torch.ones(3), target) is None
    assert target.tolist() == [1, 1, 1]
    assert not host_memory(3, torch.float32, torch.device("cpu")).is_pinned()


# How the engine waits for a copy


class Timers:
    """A loop without a thread: posted calls run immediately, timers when the test says so."""

    def __init__(self) -> None:
        self.later_calls: list[Callable[[], None]] = []

    def post(self, call: Callable[..., None], *arguments: Any) -> None:
        call(*arguments)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        assert delay_s > 0  # never a busy loop
        self.later_calls.append(call)


def make_group(loop: Timers) -> ConnectedGroup:
    shape = Shape(
        rank=0,
        hosts=["here"],
        job=1,
        sizes=Sizes(fixed=1024),
        credit_bytes=4096,
        silence_timeout_s=10,
        stall_timeout_s=10,
    )
    group = ConnectedGroup(shape, loop, transport=None)  # type: ignore[arg-type]  # alone: nothing is sent
    spec = KeySpec(0, 3, DType.FLOAT32, Op.MEAN, owner=0)
    group._exchange.learn([Slice(spec, (TensorRange(0, 0, 3, 0),))])
    return group


def test_a_contribution_is_sent_when_its_copy_is_complete() -> None:
    loop = Timers()
    memory, results, answers = np.zeros(3, np.float32), [], [False, False, True]
    contribution = Contribution(0, memory, memory, 1, results.append)
    make_group(loop).contribute([contribution], lambda: answers.pop(0))
    for _ in range(2):
        assert results == []
        memory += 1  # the copy is not complete
        loop.later_calls.pop()()
    assert results == [contribution]
    assert memory.tolist() == [2, 2, 2]
    assert not loop.later_calls


def test_without_a_copy_a_contribution_is_sent_immediately() -> None:
    loop = Timers()
    results: list[Contribution] = []
    memory = np.ones(3, np.float32)
    make_group(loop).contribute([Contribution(0, memory, memory, 1, results.append)])
    assert len(results) == 1
    assert not loop.later_calls


def test_the_cores_of_a_host_are_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert name_device(torch.device("cpu")) == "cpu"


def test_workers_bound_to_the_same_cores_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 2})
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert name_device(torch.device("cpu")) == "cpu 2,3"


class Properties:
    def __init__(self, uuid: str | None) -> None:
        if uuid is not None:
            self.uuid = uuid


@pytest.mark.parametrize(("uuid", "name"), [("GPU-12ab", "cuda GPU-12ab"), (None, "cuda 1")])
def test_a_device_has_the_same_name_in_all_processes(
    monkeypatch: pytest.MonkeyPatch, uuid: str | None, name: str
) -> None:
    module = type("Module", (), {"get_device_properties": lambda self, index: Properties(uuid)})()
    monkeypatch.setattr("torch.get_device_module", lambda device: module)
    assert name_device(DEVICE) == name


def test_free_memory_is_read_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type("Module", (), {"mem_get_info": lambda self, device: (5, 8)})()
    monkeypatch.setattr("torch.get_device_module", lambda device: module)
    assert find_free_bytes(DEVICE) == 5


def test_free_memory_of_the_host_is_a_number_of_bytes() -> None:
    assert find_free_bytes(torch.device("cpu")) > 1 << 20


class FakeDevices:
    """A fake of `torch.cuda` on a host with several devices."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.calls: list[tuple[str, int]] = []

    def device_count(self) -> int:
        return self.count

    def set_device(self, index: int) -> None:
        self.calls.append(("set_device", index))

    def manual_seed(self, seed: int) -> None:
        self.calls.append(("manual_seed", seed))


@pytest.mark.parametrize(("count", "calls"), [(4, [("set_device", 3)]), (2, [("set_device", 1)]), (1, [])])
def test_workers_of_a_host_take_its_devices_in_turn(
    count: int, calls: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = FakeDevices(count)
    monkeypatch.setattr(torch, "get_device_module", lambda: devices)
    choose_accelerator(3)
    assert devices.calls == calls


def test_the_accelerator_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = FakeDevices(1)
    monkeypatch.setattr(torch, "get_device_module", lambda: devices)
    seed_accelerator(5)
    assert devices.calls == [("manual_seed", 5)]


def test_without_a_device_there_is_nothing_to_choose() -> None:
    choose_accelerator(3)
    seed_accelerator(5)
