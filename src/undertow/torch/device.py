"""Tensors on an accelerator: through pinned host memory, on a stream of their own.

In: a tensor on a device.  Out: its bytes in host memory, and a way to ask whether
they are there yet; and back.  Device-neutral: `torch.accelerator` came with 2.6, but every
device's own module has had the same streams and events since before 2.4.
Nothing here has run on hardware so far: the logic is tested with stand-ins.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch


class Streams(Protocol):
    """What is needed of a device; `torch.cuda` and its siblings have it."""

    def current_stream(self, device: torch.device) -> Any: ...
    def Stream(self, device: torch.device) -> Any: ...  # noqa: N802
    def Event(self) -> Any: ...  # noqa: N802
    def stream(self, stream: Any) -> Any: ...


class DeviceCopier:
    """Copies between one device and the host beside the computation, never before its results exist."""

    def __init__(self, streams: Streams, device: torch.device) -> None:
        self._streams = streams
        # By name everywhere: the thread that calls may have another device as its current one.
        self._device = device
        self._side = streams.Stream(device)

    def out(self, source: torch.Tensor, target: torch.Tensor) -> Callable[[], bool]:
        """Start a copy to the host.  The result tells whether it has ended."""
        self._side.wait_stream(self._streams.current_stream(self._device))
        with self._streams.stream(self._side):
            target.copy_(source, non_blocking=True)
            event = self._streams.Event()
            event.record(self._side)
        # The allocator must not hand the gradient's memory to anyone before it is read.
        source.record_stream(self._side)
        is_done: Callable[[], bool] = event.query
        return is_done

    def back(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy to the device; whatever the computation does next comes after it."""
        current = self._streams.current_stream(self._device)
        self._side.wait_stream(current)
        with self._streams.stream(self._side):
            target.copy_(source, non_blocking=True)
        current.wait_stream(self._side)
        target.record_stream(self._side)


class HostCopier:
    """The same on the host: a plain copy, at once."""

    def out(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)

    def back(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)


Copier = DeviceCopier | HostCopier


def copier_for(device: torch.device) -> Copier:
    return HostCopier() if device.type == "cpu" else DeviceCopier(torch.get_device_module(device), device)


def remember_stream(device: torch.device, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Notes on which stream these tensors are made.

    The result is to be called on the stream that reads them: it lets that one wait, and keeps their memory until then.
    """
    if device.type == "cpu":
        return _do_nothing
    streams: Streams = torch.get_device_module(device)
    return functools.partial(_follow, streams, device, streams.current_stream(device), tensors)


def _follow(streams: Streams, device: torch.device, made_on: Any, tensors: Sequence[torch.Tensor]) -> None:
    current = streams.current_stream(device)
    if current != made_on:
        current.wait_stream(made_on)
        for tensor in tensors:
            tensor.record_stream(current)


def _do_nothing() -> None:
    """What the host has made is there."""


def host_memory(elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Flat host memory for copies from and to this device: pinned unless it is the host."""
    return torch.empty(elements, dtype=dtype, pin_memory=device.type != "cpu")


def describe_arithmetic(device: torch.device) -> str:
    """What decides about the bits of a matrix product; where it differs, so may they."""
    if device.type != "cpu":
        return f"torch {torch.__version__}, {torch.get_device_module(device).get_device_name(device)}"
    cpu, capability = find_processor(), torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {cpu}, {capability}, {torch.get_num_threads()} threads"


@functools.cache
def find_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def synchronise(device: torch.device) -> None:
    """Return when the device has done all that it was given: only then do clocks tell the truth."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def name_device(device: torch.device) -> str:
    """What all processes of this host call it, whichever devices each of them sees."""
    if device.type == "cpu":
        return _name_cores()
    module = torch.get_device_module(device)
    index = device.index if device.index is not None else module.current_device()
    identity = getattr(module.get_device_properties(index), "uuid", None)
    return f"{device.type} {identity or index}"


def _name_cores() -> str:
    """Who was given some of the cores shares them with those who were given the same."""
    own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not own or len(own) == os.cpu_count():
        return "cpu"
    return f"cpu {','.join(map(str, own))}"


def seed_accelerator(seed: int) -> None:
    """Its random numbers, if there is one."""
    if torch.get_device_module() is not torch.cpu:
        torch.get_device_module().manual_seed(seed)


def choose_accelerator(local_rank: int) -> None:
    """The one of this host that "cuda" and the like mean from now on: each worker's own, where there are enough."""
    module = torch.get_device_module()
    count = module.device_count() if module is not torch.cpu else 0
    if count > 1:
        module.set_device(local_rank % count)


def find_free_bytes(device: torch.device) -> int:
    """Memory of the device that nobody has."""
    if device.type != "cpu":
        free_bytes: int = torch.get_device_module(device).mem_get_info(device)[0]
        return free_bytes
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return sys.maxsize
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), sys.maxsize)
