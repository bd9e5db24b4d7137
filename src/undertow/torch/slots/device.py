"""Copies between accelerators and the host, through pinned memory on a separate stream; other facts about devices.

In: a tensor on a device.  Out: its bytes in host memory, and a function that tells whether the copy is complete; and
back.  Device-neutral: `torch.accelerator` was added in 2.6, but every device's own module has had the same streams and
events since before 2.4.
None of this has run on hardware yet: the logic is tested with fakes.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch


class Streams(Protocol):
    """Streams and events of a device, as `torch.cuda` and its siblings have them."""

    def current_stream(self, device: torch.device) -> Any: ...
    def Stream(self, device: torch.device) -> Any: ...  # noqa: N802
    def Event(self) -> Any: ...  # noqa: N802
    def stream(self, stream: Any) -> Any: ...


class DeviceCopier:
    """Copies between one device and the host, concurrent with the computation but never before its results exist."""

    def __init__(self, streams: Streams, device: torch.device) -> None:
        self._streams = streams
        # Passed explicitly everywhere: the calling thread may have another current device.
        self._device = device
        self._side = streams.Stream(device)

    def out(self, source: torch.Tensor, target: torch.Tensor) -> Callable[[], bool]:
        """Start a copy to the host; return a function that tells whether it is complete."""
        self._side.wait_stream(self._streams.current_stream(self._device))
        with self._streams.stream(self._side):
            target.copy_(source, non_blocking=True)
            event = self._streams.Event()
            event.record(self._side)
        # The allocator must not reuse the gradient's memory before it is read.
        source.record_stream(self._side)
        is_done: Callable[[], bool] = event.query
        return is_done

    def back(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy to the device, before any work that the computation starts next."""
        current = self._streams.current_stream(self._device)
        self._side.wait_stream(current)
        with self._streams.stream(self._side):
            target.copy_(source, non_blocking=True)
        current.wait_stream(self._side)
        target.record_stream(self._side)


class HostCopier:
    """Copies within the host, which complete immediately."""

    def out(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)

    def back(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)


Copier = DeviceCopier | HostCopier


def copier_for(device: torch.device) -> Copier:
    return HostCopier() if device.type == "cpu" else DeviceCopier(torch.get_device_module(device), device)


def remember_stream(tensors: tuple[torch.Tensor, ...]) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Remember the stream on which these tensors of one device are computed.

    Returns a function that returns the tensors.  Call it on the stream that reads them: that stream then waits for
    them, and their memory is kept until it has read them.
    """
    device = tensors[-1].device
    if device.type == "cpu":
        return lambda: tensors  # on the host, a tensor that exists is complete
    streams: Streams = torch.get_device_module(device)
    return functools.partial(_follow, streams, device, streams.current_stream(device), tensors)


def _follow(
    streams: Streams, device: torch.device, made_on: Any, tensors: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    current = streams.current_stream(device)
    if current != made_on:
        current.wait_stream(made_on)
        for tensor in tensors:
            tensor.record_stream(current)
    return tensors


def host_memory(elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return flat host memory for copies from and to this device, pinned unless the device is the CPU."""
    return torch.empty(elements, dtype=dtype, pin_memory=device.type != "cpu")


def describe_arithmetic(device: torch.device) -> str:
    """Return what the bits of a matrix product depend on."""
    if device.type != "cpu":
        return f"torch {torch.__version__}, {torch.get_device_module(device).get_device_name(device)}"
    cpu, capability = find_processor(), torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {cpu}, {capability}, {torch.get_num_threads()} threads"


@functools.cache
def find_processor() -> str:
    names = (line.partition(":")[2].strip() for line in _read_lines("/proc/cpuinfo") if line.startswith("model name"))
    return next(names, platform.machine())


def _read_lines(path: str) -> list[str]:
    """Return the lines of a file in /proc; none if there is no such file."""
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def synchronise(device: torch.device) -> None:
    """Wait until the device has completed all its work, so that reading a clock is meaningful."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def name_device(device: torch.device) -> str:
    """Return a name for the device that is the same in all processes of this host, whichever devices each can see."""
    if device.type == "cpu":
        return _name_cores()
    module = torch.get_device_module(device)
    index = device.index if device.index is not None else module.current_device()
    identity = getattr(module.get_device_properties(index), "uuid", None)
    return f"{device.type} {identity or index}"


def _name_cores() -> str:
    """Return a name for this process's cores, which is the same in processes that are bound to the same cores."""
    own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not own or len(own) == os.cpu_count():
        return "cpu"
    return f"cpu {','.join(map(str, own))}"


def seed_accelerator(seed: int) -> None:
    """Seed the random numbers of the accelerator, if there is one."""
    if torch.get_device_module() is not torch.cpu:
        torch.get_device_module().manual_seed(seed)


def choose_accelerator(local_rank: int) -> None:
    """Make this worker's own device the current one, which "cuda" without an index means, if there are several."""
    module = torch.get_device_module()
    count = module.device_count() if module is not torch.cpu else 0
    if count > 1:
        module.set_device(local_rank % count)


def find_free_bytes(device: torch.device) -> int:
    if device.type != "cpu":
        free_bytes: int = torch.get_device_module(device).mem_get_info(device)[0]
        return free_bytes
    sizes_kib = (int(line.split()[1]) for line in _read_lines("/proc/meminfo") if line.startswith("MemAvailable"))
    return next((size * 1024 for size in sizes_kib), sys.maxsize)
