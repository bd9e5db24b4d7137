"""Runs `undertow doctor`: checks its options before anything is started, and finds this host in `--hosts`.

In: the command line's values and the environment.  Out: a `Report`.
Impossible options raise `ConfigError`.  Settings are read leniently: an invalid value is a finding, not an error.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undertow import bounds
from undertow.errors import ConfigError
from undertow.launch.job import DEFAULT_MASTER_PORT
from undertow.settings import Origin, ResolvedSetting, resolve_settings
from undertow.tools.doctor.collect import JobContext, resolve
from undertow.tools.doctor.examination import Examination, examine_host, examine_hosts
from undertow.tools.doctor.facts import Host, Network, Scope
from undertow.tools.doctor.findings import Finding
from undertow.tools.doctor.interfaces import is_loopback
from undertow.tools.doctor.netlink import list_interfaces
from undertow.tools.doctor.rendezvous import (
    DoctorRendezvous,
    HostCard,
    HostGroup,
    join_rendezvous,
    lead_rendezvous,
    open_rendezvous,
)
from undertow.tools.doctor.view import Report

if TYPE_CHECKING:
    from undertow.progress import Progress


@dataclass(frozen=True, kw_only=True)
class DoctorRequest:
    """Options of one `undertow doctor` on one host."""

    hosts: str | None = None
    node_rank: int | None = None
    port: int | None = None
    nproc: int = 1
    timeout_s: float = 60.0
    duration_s: float = 0.5

    def __post_init__(self) -> None:
        bounds.WORKERS_PER_HOST.check("-n", self.nproc)
        bounds.DOCTOR_WAIT_S.check("--timeout", self.timeout_s)
        bounds.PROBE_S.check("--seconds", self.duration_s)
        if self.port is not None:
            bounds.PORT.check("--port", self.port)
        if self.hosts is None and self.node_rank is not None:
            raise ConfigError("--node-rank is this host's number in --hosts: give --hosts as well")


def examine(request: DoctorRequest, environ: Mapping[str, str], progress: Progress) -> Report:
    sources = {source.name: source for source in resolve_settings(environ)}
    if request.hosts is None:
        return examine_host(_prepare_alone(request, environ, sources), progress)
    names = split_hosts(request.hosts)
    progress.say("looking up the names of the hosts")
    rendezvous = _make_rendezvous(request, names, sources)
    examination = _prepare_together(request, environ, sources, rendezvous)
    return examine_host(examination, progress) if len(names) == 1 else _examine(examination, rendezvous, progress)


def _prepare_alone(
    request: DoctorRequest, environ: Mapping[str, str], sources: Mapping[str, ResolvedSetting]
) -> Examination:
    """Return the options for one host; if MASTER_ADDR is set, the route to it determines the interface."""
    addr, port = sources["master_addr"], _read_port(sources)
    target = addr.value if addr.origin is Origin.VARIABLE else ""
    is_first = bool(target) and any(one in _own_addresses() for one in resolve([target])[target])
    context = JobContext(
        environ=environ,
        outer=environ,
        address=sources["address"].value,
        target=target,
        target_origin="MASTER_ADDR",
        master=(target, port) if is_first and port else None,
    )
    return Examination(name=socket.gethostname(), scope=Scope(1, request.nproc), context=context)


def _make_rendezvous(
    request: DoctorRequest, names: Sequence[str], sources: Mapping[str, ResolvedSetting]
) -> DoctorRendezvous:
    resolved = resolve(names)
    if request.node_rank is None:
        check_apart(names, resolved)
        rank = find_own_rank(names, resolved, _own_addresses())
    elif not 0 <= request.node_rank < len(names):
        raise ConfigError(f"--node-rank {request.node_rank} is outside of 0 to {len(names) - 1} (the hosts of --hosts)")
    else:
        rank = request.node_rank
    return DoctorRendezvous(
        names=names,
        rank=rank,
        # The first of its addresses, as the launcher would use.
        address=next(iter(resolved[names[0]]), names[0]),
        port=request.port or _read_port(sources) or DEFAULT_MASTER_PORT,
        guard=sources["token"].value.encode(errors="replace"),
        timeout_s=request.timeout_s,
        is_local=all(resolved[name] and all(map(is_loopback, resolved[name])) for name in names),
    )


def _prepare_together(
    request: DoctorRequest,
    environ: Mapping[str, str],
    sources: Mapping[str, ResolvedSetting],
    rendezvous: DoctorRendezvous,
) -> Examination:
    first, rank = rendezvous.names[0], rendezvous.rank
    context = JobContext(
        environ=environ,
        outer=environ,
        address=sources["address"].value,
        target=rendezvous.address,
        target_origin="the first of --hosts" if first == rendezvous.address else f"{first}, the first of --hosts",
        master=(rendezvous.address, rendezvous.port) if rank == 0 else None,
        arguments={"master_addr": first, "master_port": request.port},
    )
    return Examination(
        name=rendezvous.names[rank],
        scope=Scope(len(rendezvous.names), request.nproc, rendezvous.is_local),
        context=context,
        duration_s=request.duration_s,
        timeout_s=request.timeout_s,
        has_token=bool(rendezvous.guard),
    )


def _examine(examination: Examination, rendezvous: DoctorRendezvous, progress: Progress) -> Report:
    with ExitStack() as stack:

        def join(facts: Host, card: HostCard) -> tuple[HostGroup | None, list[Finding]]:
            if cannot_join(facts.network, rendezvous):
                return None, []
            if rendezvous.rank > 0:
                return join_rendezvous(rendezvous, card, progress.say)
            stack.enter_context(open_rendezvous(rendezvous))
            return lead_rendezvous(rendezvous, card, progress.say)

        return examine_hosts(examination, join, progress)


def cannot_join(network: Network, rendezvous: DoctorRendezvous) -> bool:
    """Return whether a rendezvous is impossible, for a reason that is already among the findings."""
    if rendezvous.rank > 0:
        return bool(network.use.error)
    is_hidden = is_loopback(rendezvous.address) and not rendezvous.is_local
    return bool(network.use.error or network.master_error) or is_hidden


def _read_port(sources: Mapping[str, ResolvedSetting]) -> int:
    """Return the port that is set; 0 if it is invalid."""
    port = sources["master_port"]
    return 0 if port.error else int(port.value)


def _own_addresses() -> list[str]:
    return [address for one in list_interfaces() for address in one.addresses]


def split_hosts(text: str) -> list[str]:
    """Return the names in order; raise `ConfigError` for an empty or a repeated one."""
    names = [name.strip().strip("[]") for name in text.split(",")]
    if not all(names):
        raise ConfigError(f"--hosts {text!r} has an empty name: write it as a,b,c")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--hosts names {name} twice: list every host once")
    return names


def find_own_rank(names: Sequence[str], resolved: Mapping[str, Sequence[str]], own: Sequence[str]) -> int:
    """Return this host's number among the names."""
    ranks = [rank for rank, name in enumerate(names) if any(_is_own(one, own) for one in resolved[name])]
    if len(ranks) == 1:
        return ranks[0]
    cure = "give this host's number with --node-rank"
    if ranks:
        which = " and ".join(names[rank] for rank in ranks)
        raise ConfigError(f"{which} of --hosts are both this host: list it once, or {cure}")
    known = ", ".join(address for address in own if not is_loopback(address)) or "none but loopback"
    raise ConfigError(f"none of {', '.join(names)} is this host (its addresses: {known}): correct --hosts, or {cure}")


def check_apart(names: Sequence[str], resolved: Mapping[str, Sequence[str]]) -> None:
    """Raise `ConfigError` if two names have the same address, because they are one host."""
    owner: dict[str, str] = {}
    for name in names:
        for address in resolved[name]:
            if owner.setdefault(address, name) != name:
                twins = f"{owner[address]} and {name}"
                raise ConfigError(f"{twins} of --hosts have the same address, {address}: list every host once")


def _is_own(address: str, own: Sequence[str]) -> bool:
    return address.partition("%")[0] in own or is_loopback(address)
