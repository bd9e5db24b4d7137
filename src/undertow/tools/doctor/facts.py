"""Facts about one host, before anything is judged.

Plain data that is sent as msgpack and shown as JSON.
It never holds a secret: of a token only the length.
"""

from __future__ import annotations

import msgspec


class Package(msgspec.Struct, frozen=True):
    name: str
    least: str  # the lowest version required; empty: any
    found: str  # empty: not installed


class Torch(msgspec.Struct, frozen=True):
    """Torch as found by a child process that imported it."""

    package: Package
    error: str = ""  # why it could not be imported, in one line
    threads: int = 0  # with which it computes by default
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
    speed_mbit: int = 0  # 0: unknown


class AddressChoice(msgspec.Struct, frozen=True):
    """Address of this host that workers would use, and why."""

    address: str
    because: str
    error: str = ""  # why there is none


class Network(msgspec.Struct, frozen=True):
    interfaces: list[Interface]
    use: AddressChoice
    bind_error: str = ""  # why no port can be bound at that address
    master_port: int = 0  # of the rendezvous; 0: it is not on this host
    master_error: str = ""  # why that port cannot be bound
    port_range: tuple[int, int] = (0, 0)  # from which the system chooses ports; zeros: unknown
    hostname: str = ""
    hostname_addresses: list[str] = []


class Machine(msgspec.Struct, frozen=True):
    cores: int  # that this process may run on
    quota_cores: float  # CPU time that a container may use at once, in cores; 0: no limit
    omp_num_threads: str  # as set; empty: not set
    open_files: int  # ulimit -n


class Setting(msgspec.Struct, frozen=True):
    name: str
    variable: str
    value: str
    origin: str  # argument, variable, default
    complaint: str = ""


class Variables(msgspec.Struct, frozen=True):
    settings: list[Setting]
    unknown: list[str] = []  # UNDERTOW_* variables that are not settings
    complaint: str = ""  # about values that are valid alone but not together
    worker_complaint: str = ""  # such a complaint about variables that launchers set for their workers


class Host(msgspec.Struct, frozen=True):
    software: Software
    network: Network
    machine: Machine
    variables: Variables

    @property
    def interface(self) -> Interface | None:
        """The interface in use."""
        return next((one for one in self.network.interfaces if self.network.use.address in one.addresses), None)


class Scope(msgspec.Struct, frozen=True):
    """Size of the job for which the facts are judged."""

    hosts: int = 1
    nproc: int = 1
    is_local: bool = False  # all hosts are on this machine's loopback, as in a trial

    @property
    def world_size(self) -> int:
        return self.hosts * self.nproc
