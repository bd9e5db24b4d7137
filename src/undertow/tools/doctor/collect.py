"""Collects the facts of this host.

In: the environment and options that the job would have.  Out: a `Host`.
Torch is imported in a child process, because a broken install shows only when it is imported; the child is killed when
its time limit is over, or when the doctor ends.
Nothing is judged here.  Every wait has a limit; nothing is changed, and nothing is tried except to bind a port.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from undertow.decoding import Decoder, Format
from undertow.engine.wire.routes import look_up, route_to
from undertow.errors import ConfigError, Garbled
from undertow.observe.report.machine import count_cores, find_version, read_text
from undertow.release import __version__
from undertow.tools.doctor.facts import AddressChoice, Host, Machine, Network, Package, Software, Torch
from undertow.tools.doctor.netlink import list_interfaces
from undertow.tools.doctor.variables import collect_variables

_LOWEST = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?(?:.*?>=\s*([0-9.]+))?")
ALONE = "127.0.0.1"
PROBE = Path(__file__).with_name("torch_probe.py")
LIMIT_S = 90.0  # from a cold network file system, the import may take half a minute
LONGEST_REASON = 300
RESOLVE_S = 10.0  # the system's own call has no limit


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """Environment and options of the job that the facts of this host depend on."""

    environ: Mapping[str, str]
    outer: Mapping[str, str]  # the environment before options were added to it
    address: str = ""  # UNDERTOW_ADDRESS
    target: str = ""  # host to which the route determines the interface; empty: this host is alone
    target_origin: str = ""  # where the target was given
    master: tuple[str, int] | None = None  # address and port of the rendezvous, on the host that has it
    arguments: Mapping[str, Any] = field(default_factory=dict)  # settings given on the command line


def collect(context: JobContext, say: Callable[[str], None]) -> Host:
    python, packages, torch = list_packages()
    say("importing torch in a child process, to see whether it works")
    with TorchChild(torch) as child:
        network = _collect_network(context)
        machine = _collect_machine(context.environ)
        variables = collect_variables(context.environ, outer=context.outer, **context.arguments)
        has_card = Path("/dev/nvidia0").exists()
        software = Software(python, __version__, packages, _wait(child, torch), has_card)
    return Host(software, network, machine, variables)


def _wait(child: TorchChild, torch: Package) -> Torch:
    try:
        return child.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return Torch(torch, f"importing it takes longer than {LIMIT_S:g} s")


def list_packages() -> tuple[Package, list[Package], Package]:
    """Return Python, undertow's dependencies, and torch; from the metadata, so that pyproject.toml is the only list."""
    try:
        own = metadata.metadata("undertow")
        requires, python = own.get_all("Requires-Dist") or [], str(own["Requires-Python"] or "")
    except metadata.PackageNotFoundError:
        requires, python = [], ""
    needed = [read_requirement(text) for text in requires if "extra ==" not in text]
    torch = next((found for text in requires if (found := read_requirement(text))[0] == "torch"), ("torch", ""))
    lowest_python = python.partition(">=")[2].partition(",")[0].strip()
    packages = [Package(name, least, find_version(name)) for name, least in needed]
    return (
        Package("python", lowest_python, platform.python_version()),
        packages,
        Package(*torch, find_version("torch")),
    )


def read_requirement(text: str) -> tuple[str, str]:
    """Return name and lowest version of `torch>=2.4; extra == "torch"`; the version is empty if any will do."""
    found = _LOWEST.match(text.partition(";")[0])
    return (found[1], found[2] or "") if found else (text, "")


def _collect_network(context: JobContext) -> Network:
    use = choose_address(context)
    hostname = socket.gethostname()
    return Network(
        interfaces=list_interfaces(),
        use=use,
        bind_error="" if use.error else try_port(use.address, 0),
        master_port=context.master[1] if context.master else 0,
        master_error=try_port(*context.master) if context.master else "",
        port_range=_read_port_range(),
        hostname=hostname,
        hostname_addresses=resolve([hostname])[hostname],
    )


def choose_address(context: JobContext) -> AddressChoice:
    """Choose the address that workers would use: UNDERTOW_ADDRESS, else the route to the first host, else loopback."""
    if context.address:
        return AddressChoice(context.address, "UNDERTOW_ADDRESS is set to it")
    if not context.target:
        return AddressChoice(ALONE, "only this host takes part")
    where = f"{context.target} ({context.target_origin})"
    try:
        own = route_to(context.target)
    except ConfigError as error:
        return AddressChoice("", "", str(error))
    except OSError as error:
        return AddressChoice("", "", f"there is no route to {where}: {error.strerror or error}")
    return AddressChoice(
        own, f"{where} is this host's own" if own == context.target else f"the route to {where} starts there"
    )


def try_port(address: str, port: int) -> str:
    """Bind a port as a rendezvous would, and return why that fails, or "" if it works."""
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
    numbers = read_text("/proc/sys/net/ipv4/ip_local_port_range").split()
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else (0, 0)


def _collect_machine(environ: Mapping[str, str]) -> Machine:
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(
        cores=count_cores(),
        quota_cores=_read_quota(),
        omp_num_threads=environ.get("OMP_NUM_THREADS", ""),
        open_files=1 << 30 if open_files == resource.RLIM_INFINITY else open_files,
    )


def _read_quota() -> float:
    """Return the lowest CPU limit of this process's control groups, in cores; 0 if there is none."""
    group = next((line[3:] for line in read_text("/proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    folder = Path("/sys/fs/cgroup") / group.lstrip("/")
    texts = [read_text(level / "cpu.max") for level in (folder, *folder.parents) if "cgroup" in str(level)]
    older = Path("/sys/fs/cgroup/cpu")
    texts.append(f"{read_text(older / 'cpu.cfs_quota_us')} {read_text(older / 'cpu.cfs_period_us')}")
    return min((cores for text in texts if (cores := read_quota(text))), default=0.0)


def read_quota(text: str) -> float:
    """Return the cores of `200000 100000`, which is CPU time per period in microseconds; 0 for `max` or nothing."""
    numbers = text.split()
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers) or int(numbers[1]) == 0:
        return 0.0
    return int(numbers[0]) / int(numbers[1])


class _Answer(msgspec.Struct):
    threads: int
    devices: list[str]
    build: str


_answers: Decoder[_Answer] = Decoder(_Answer, format=Format.JSON)


class TorchChild:
    """Child process that imports torch.  Starts on entry, so that other facts can be collected; is killed on exit."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> TorchChild:
        if self._package.found:
            # With -P, so that a torch.py in the current folder is not imported, and without undertow's variables, which
            # are judged elsewhere.
            environ = {name: value for name, value in os.environ.items() if not name.startswith("UNDERTOW_")}
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(PROBE)],
                env=environ,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is None:
            return
        self._child.kill()
        self._child.communicate()

    def wait(self, limit_s: float) -> Torch:
        """Return what the child found; raise `subprocess.TimeoutExpired` if it takes longer."""
        if self._child is None:
            return Torch(self._package, "it is not installed")
        out, err = self._child.communicate(timeout=limit_s)
        return read_answer(self._package, self._child.returncode, out, err)


def read_answer(package: Package, code: int, out: str, err: str) -> Torch:
    """Return what the child found, from its exit code and output."""
    lines = out.strip().splitlines()
    if code == 0 and lines:
        try:
            answer = _answers.decode(lines[-1].encode())
        except Garbled as error:
            return Torch(package, f"the output of the child process that imports it is invalid ({error})")
        return Torch(package, "", answer.threads, answer.devices, answer.build)
    reason = next((line.strip() for line in reversed(err.splitlines()) if line.strip()), "it printed nothing")
    if code < 0:
        reason = f"importing it ends with {signal.Signals(-code).name}"
    return Torch(package, reason[:LONGEST_REASON])


def resolve(names: Sequence[str], *, limit_s: float = RESOLVE_S) -> dict[str, list[str]]:
    """Look up the addresses of every name; a name that is unknown, or not found in time, has none."""
    found: dict[str, list[str]] = {name: [] for name in names}
    threads = [threading.Thread(target=_resolve_one, args=[name, found], daemon=True) for name in names]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return dict(found)


def _resolve_one(name: str, found: dict[str, list[str]]) -> None:
    try:
        answers = look_up(name)
    except OSError:
        return
    found[name] = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
