"""`undertow doctor`: what was asked, checked before anything is started, and answered.

In: the command line's values and the environment.  Out: a `Report`.
Impossible wishes are refused with `ConfigError`.  Settings are read leniently: a value that is not possible is a
finding, not the end.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undertow import bounds
from undertow.doctor.cards import Card, Circle
from undertow.doctor.collect import Question
from undertow.doctor.examination import Patient, examine_host, examine_hosts
from undertow.doctor.facts import Host, Network, Scope
from undertow.doctor.findings import Finding
from undertow.doctor.gathering import Appointment, gather, join, open_point
from undertow.doctor.interfaces import is_loopback
from undertow.doctor.names import check_apart, find_own_rank, resolve, split_hosts
from undertow.doctor.netlink import list_interfaces
from undertow.doctor.view import Report
from undertow.errors import ConfigError
from undertow.launch.job import DEFAULT_MASTER_PORT
from undertow.settings import Origin, Source, list_sources

if TYPE_CHECKING:
    from undertow.watch import Watch


@dataclass(frozen=True, kw_only=True)
class Request:
    """One `undertow doctor` on one host."""

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
            raise ConfigError("--node-rank says which of --hosts this is: give --hosts as well")


def answer(request: Request, environ: Mapping[str, str], watch: Watch) -> Report:
    """Examine what was asked for."""
    sources = {source.name: source for source in list_sources(environ)}
    if request.hosts is None:
        return examine_host(_ask_alone(request, environ, sources), watch)
    names = split_hosts(request.hosts)
    watch.say("looking up the names of the hosts")
    appointment = _make_appointment(request, names, sources)
    patient = _ask_together(request, environ, appointment)
    return examine_host(patient, watch) if len(names) == 1 else _examine(patient, appointment, watch)


def _ask_alone(request: Request, environ: Mapping[str, str], sources: Mapping[str, Source]) -> Patient:
    """One host; a MASTER_ADDR in its environment decides about the interface all the same."""
    addr, port = sources["master_addr"], _read_port(sources)
    target = addr.value if addr.origin is Origin.VARIABLE else ""
    is_first = bool(target) and any(one in _own_addresses() for one in resolve([target])[target])
    question = Question(
        environ=environ,
        outer=environ,
        address=sources["address"].value,
        target=target,
        target_is="MASTER_ADDR",
        master=(target, port) if is_first and port else None,
    )
    return Patient(name=socket.gethostname(), scope=Scope(1, request.nproc), question=question)


def _make_appointment(request: Request, names: Sequence[str], sources: Mapping[str, Source]) -> Appointment:
    resolved = resolve(names)
    if request.node_rank is None:
        check_apart(names, resolved)
        rank = find_own_rank(names, resolved, _own_addresses())
    elif not 0 <= request.node_rank < len(names):
        raise ConfigError(f"--node-rank {request.node_rank} is outside of 0 to {len(names) - 1} (the hosts of --hosts)")
    else:
        rank = request.node_rank
    return Appointment(
        names=names,
        rank=rank,
        # As the launcher would: the first of its addresses.
        address=next(iter(resolved[names[0]]), names[0]),
        port=request.port or _read_port(sources) or DEFAULT_MASTER_PORT,
        guard=sources["token"].value.encode(errors="replace"),
        timeout_s=request.timeout_s,
        is_local=all(resolved[name] and all(map(is_loopback, resolved[name])) for name in names),
    )


def _ask_together(request: Request, environ: Mapping[str, str], appointment: Appointment) -> Patient:
    first, rank = appointment.names[0], appointment.rank
    question = Question(
        environ=environ,
        outer=environ,
        address={source.name: source.value for source in list_sources(environ)}["address"],
        target=appointment.address,
        target_is="the first of --hosts" if first == appointment.address else f"{first}, the first of --hosts",
        master=(appointment.address, appointment.port) if rank == 0 else None,
        arguments={"master_addr": first, "master_port": request.port},
    )
    return Patient(
        name=appointment.names[rank],
        scope=Scope(len(appointment.names), request.nproc, appointment.is_local),
        question=question,
        duration_s=request.duration_s,
        timeout_s=request.timeout_s,
        has_token=bool(appointment.guard),
    )


def _examine(patient: Patient, appointment: Appointment, watch: Watch) -> Report:
    with ExitStack() as stack:

        def form(facts: Host, card: Card) -> tuple[Circle | None, list[Finding]]:
            if is_in_vain(facts.network, appointment):
                return None, []
            if appointment.rank > 0:
                return join(appointment, card, watch.say)
            stack.enter_context(open_point(appointment))
            return gather(appointment, card, watch.say)

        return examine_hosts(patient, form, watch)


def is_in_vain(network: Network, appointment: Appointment) -> bool:
    """Whether nobody can be met, for a reason that is among the findings already."""
    if appointment.rank > 0:
        return bool(network.use.error)
    is_hidden = is_loopback(appointment.address) and not appointment.is_local
    return bool(network.use.error or network.master_error) or is_hidden


def _read_port(sources: Mapping[str, Source]) -> int:
    """0 if none is set, or none that is possible."""
    port = sources["master_port"]
    return 0 if port.complaint else int(port.value)


def _own_addresses() -> list[str]:
    return [address for one in list_interfaces() for address in one.addresses]
