"""What is known of one host before anything is judged.

In: nothing.  Out: plain data that travels as msgpack and is shown as JSON.
No secret is ever among the facts: of a token only its length.
"""

from __future__ import annotations

import msgspec


class Package(msgspec.Struct, frozen=True):
    name: str
    least: str  # the lowest version that will do; empty: any
    found: str  # empty: not installed


class Torch(msgspec.Struct, frozen=True):
    """As a child process saw it that really imported it."""

    package: Package
    error: str = ""  # why it could not be imported, in one line
    threads: int = 0  # that it would compute with, if nobody says otherwise
    devices: list[str] = []  # names of the accelerators that it sees
    build: str = ""  # "cpu", "cuda 12.4", ...


class Software(msgspec.Struct, frozen=True):
    python: Package
    undertow: str
    packages: list[Package]
    torch: Torch
    has_nvidia_card: bool = False


class Interface(msgspec.Struct, frozen=True):
    name: str
    is_up: bool
    is_loopback: bool
    mtu: int
    addresses: list[str] = []
    speed_mbit: int = 0  # 0: it does not say


class Use(msgspec.Struct, frozen=True):
    """The own address that workers would use, and why."""

    address: str
    because: str
    error: str = ""  # why there is none


class Network(msgspec.Struct, frozen=True):
    interfaces: list[Interface]
    use: Use
    bind_error: str = ""  # why no port can be bound at that address
    master_port: int = 0  # 0: this host is not asked to keep one free
    master_error: str = ""  # why that port cannot be had
    port_range: tuple[int, int] = (0, 0)  # from which the system gives ports; zeros: not known
    hostname: str = ""
    hostname_addresses: list[str] = []


class Machine(msgspec.Struct, frozen=True):
    cores: int  # that this process may run on
    quota_cores: float  # what a container may use of them at a time; 0: no limit
    omp_num_threads: str  # as it is set; empty: not
    open_files: int  # ulimit -n


class Setting(msgspec.Struct, frozen=True):
    name: str
    variable: str
    value: str
    origin: str  # argument, variable, default
    complaint: str = ""


class Variables(msgspec.Struct, frozen=True):
    settings: list[Setting]
    unknown: list[str] = []  # UNDERTOW_* that no setting has
    complaint: str = ""  # values that are possible each for itself but not together
    worker_complaint: str = ""  # the same, but only of what launchers set for their workers


class Host(msgspec.Struct, frozen=True):
    software: Software
    network: Network
    machine: Machine
    variables: Variables

    @property
    def interface(self) -> Interface | None:
        """The one in use."""
        return next((one for one in self.network.interfaces if self.network.use.address in one.addresses), None)


class Scope(msgspec.Struct, frozen=True):
    """For what kind of job the facts are judged."""

    hosts: int = 1
    nproc: int = 1
    is_local: bool = False  # all hosts are on this machine's loopback, as in a trial

    @property
    def world_size(self) -> int:
        return self.hosts * self.nproc
