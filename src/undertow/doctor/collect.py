"""Collects the facts of this host.

In: what the job would be told.  Out: a `Host`.
Thin: nothing is judged here.  Every wait has a limit; binding a port is the only thing that is tried.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import undertow
from undertow.doctor.facts import Host, Machine, Network, Package, Software, Torch, Use
from undertow.doctor.names import resolve
from undertow.doctor.netlink import list_interfaces
from undertow.doctor.torch_child import LIMIT_S, TorchChild
from undertow.doctor.variables import collect_variables
from undertow.errors import ConfigError
from undertow.wire.routes import look_up, route_to

_LOWEST = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?(?:.*?>=\s*([0-9.]+))?")
ALONE = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of this host."""

    environ: Mapping[str, str]
    outer: Mapping[str, str]  # the environment before options were added to it
    address: str = ""  # UNDERTOW_ADDRESS
    target: str = ""  # the host whose route decides about the interface; empty: this host is alone
    target_is: str = ""  # where that came from
    master: tuple[str, int] | None = None  # where the hosts meet, if that is here
    arguments: Mapping[str, Any] = field(default_factory=dict)  # settings given on the command line


def collect(question: Question, say: Callable[[str], None]) -> Host:
    python, packages, torch = list_packages()
    say("a child process imports torch, to see whether it works")
    with TorchChild(torch) as child:
        network = _collect_network(question)
        machine = _collect_machine(question.environ)
        variables = collect_variables(question.environ, outer=question.outer, **question.arguments)
        has_card = Path("/dev/nvidia0").exists()
        software = Software(python, undertow.__version__, packages, _wait(child, torch), has_card)
    return Host(software, network, machine, variables)


def _wait(child: TorchChild, torch: Package) -> Torch:
    try:
        return child.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return Torch(torch, f"importing it takes longer than {LIMIT_S:g} s")


def list_packages() -> tuple[Package, list[Package], Package]:
    """Python, what undertow needs, and torch; from the metadata, so that pyproject.toml is the only list."""
    try:
        own = metadata.metadata("undertow")
        requires, python = own.get_all("Requires-Dist") or [], str(own["Requires-Python"] or "")
    except metadata.PackageNotFoundError:
        requires, python = [], ""
    needed = [read_requirement(text) for text in requires if "extra ==" not in text]
    torch = next((found for text in requires if (found := read_requirement(text))[0] == "torch"), ("torch", ""))
    lowest_python = python.partition(">=")[2].partition(",")[0].strip()
    packages = [Package(name, least, _find_version(name)) for name, least in needed]
    return (
        Package("python", lowest_python, platform.python_version()),
        packages,
        Package(*torch, _find_version("torch")),
    )


def read_requirement(text: str) -> tuple[str, str]:
    """Name and lowest version of `torch>=2.4; extra == "torch"`; the version is empty if any will do."""
    found = _LOWEST.match(text.partition(";")[0])
    return (found[1], found[2] or "") if found else (text, "")


def _find_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _collect_network(question: Question) -> Network:
    use = choose_use(question)
    hostname = socket.gethostname()
    master_error = ""
    if question.master is not None:
        master_error = try_port(*question.master)
    return Network(
        interfaces=list_interfaces(),
        use=use,
        bind_error="" if use.error else try_port(use.address, 0),
        master_port=question.master[1] if question.master else 0,
        master_error=master_error,
        port_range=_read_port_range(),
        hostname=hostname,
        hostname_addresses=resolve([hostname])[hostname],
    )


def choose_use(question: Question) -> Use:
    """As workers would: UNDERTOW_ADDRESS, else the route to the first host, else loopback."""
    if question.address:
        return Use(question.address, "UNDERTOW_ADDRESS says so")
    if not question.target:
        return Use(ALONE, "only this host takes part")
    where = f"{question.target} ({question.target_is})"
    try:
        own = route_to(question.target)
    except ConfigError as error:
        return Use("", "", str(error))
    except OSError as error:
        return Use("", "", f"there is no route to {where}: {error.strerror or error}")
    return Use(own, f"{where} is its own address" if own == question.target else f"the route to {where} leaves there")


def try_port(address: str, port: int) -> str:
    """Why it cannot be bound, as a meeting point would; empty if it can."""
    try:
        family, _, _, _, where = look_up(address, port)[0]
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _read_port_range() -> tuple[int, int]:
    numbers = _read("/proc/sys/net/ipv4/ip_local_port_range").split()
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else (0, 0)


def _collect_machine(environ: Mapping[str, str]) -> Machine:
    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        quota_cores=_read_quota(),
        omp_num_threads=environ.get("OMP_NUM_THREADS", ""),
        open_files=_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    )


def _limit(soft: int) -> int:
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def _read_quota() -> float:
    """The tightest limit of the control groups that this process is in; 0 if there is none."""
    group = next((line[3:] for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    folder = Path("/sys/fs/cgroup") / group.lstrip("/")
    texts = [_read(str(place / "cpu.max")) for place in (folder, *folder.parents) if "cgroup" in str(place)]
    older = Path("/sys/fs/cgroup/cpu")
    texts.append(f"{_read(str(older / 'cpu.cfs_quota_us'))} {_read(str(older / 'cpu.cfs_period_us'))}")
    return min((cores for text in texts if (cores := read_quota(text))), default=0.0)


def read_quota(text: str) -> float:
    """Cores of `200000 100000`: so many microseconds in each period of so many; 0 for `max` or nothing."""
    numbers = text.split()
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers) or int(numbers[1]) == 0:
        return 0.0
    return int(numbers[0]) / int(numbers[1])


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
