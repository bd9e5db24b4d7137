"""Examines this host alone, or several hosts together.

In: an `Examination`.  Out: a `Report`, whose findings determine the exit code.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from undertow.engine.core.version import VERSION
from undertow.engine.wire.routes import same_host_mark
from undertow.tools.doctor.cluster import judge_cluster
from undertow.tools.doctor.collect import JobContext, collect
from undertow.tools.doctor.facts import Host, Scope
from undertow.tools.doctor.findings import Finding, Level, note, pick
from undertow.tools.doctor.interfaces import judge_network
from undertow.tools.doctor.machine import judge_machine, judge_software
from undertow.tools.doctor.pairs import survey
from undertow.tools.doctor.probe_server import ProbeServer
from undertow.tools.doctor.rendezvous import HostCard, HostGroup
from undertow.tools.doctor.variables import judge_variables, select_common
from undertow.tools.doctor.view import Report

if TYPE_CHECKING:
    from undertow.progress import Progress

# Joins the other hosts with this host's facts and card; returns the group, or None and the reasons why there is none.
JoinGroup = Callable[[Host, HostCard], tuple[HostGroup | None, list[Finding]]]


@dataclass(frozen=True, kw_only=True)
class Examination:
    """Options of an examination: this host, the kind of job, and how long to measure and wait."""

    name: str
    scope: Scope
    context: JobContext
    duration_s: float = 0.5  # of each measurement of bandwidth
    timeout_s: float = 60.0  # how long the first host waits for the others
    has_token: bool = True


def judge_host(facts: Host, scope: Scope) -> list[Finding]:
    return [
        *judge_software(facts.software, nproc=scope.nproc),
        *judge_network(facts, scope),
        *judge_machine(facts.machine, facts.software, scope),
        *judge_variables(facts.variables),
    ]


def examine_host(examination: Examination, progress: Progress) -> Report:
    """Examine this host alone."""
    facts = collect(examination.context, progress.say)
    return Report(examination.name, examination.scope.hosts, facts, judge_host(facts, examination.scope))


def examine_hosts(examination: Examination, join: JoinGroup, progress: Progress) -> Report:
    """Examine this host, and with the others the links between them; all hosts reach the same verdict."""
    alone = examine_host(examination, progress)
    if not examination.has_token:
        text = (
            "UNDERTOW_TOKEN is not set: the first host sends a token to any process that connects; set it on every "
            "host to keep strangers out"
        )
        alone = msgspec.structs.replace(alone, findings=[*alone.findings, note("token", text)])
    with ExitStack() as stack:
        server = _open_probe_server(alone.facts, stack)
        group, absent = join(alone.facts, _make_card(examination, alone, server))
        if group is None:
            return msgspec.structs.replace(alone, findings=[*alone.findings, *absent])
        if server is not None:
            server.serve(group.token)
        surveyed = survey(group, duration_s=examination.duration_s, progress=progress)
    first = group.cards[0].name
    return msgspec.structs.replace(
        alone,
        findings=[
            *pick(alone.findings, Level.OK, Level.NOTE),
            *(msgspec.structs.replace(one, host=card.name) for card in group.cards for one in card.findings),
            *absent,
            *judge_cluster(group.cards, surveyed),
        ],
        cards=group.cards,
        survey=surveyed,
        see="" if group.rank == 0 else first,
    )


def _open_probe_server(facts: Host, stack: ExitStack) -> ProbeServer | None:
    """Open a probe server; return None if there is no address for it, which is already among the findings."""
    if facts.network.use.error or facts.network.bind_error:
        return None
    return stack.enter_context(closing(ProbeServer(facts.network.use.address)))


def _make_card(examination: Examination, alone: Report, server: ProbeServer | None) -> HostCard:
    facts = alone.facts
    interface = facts.interface
    software = facts.software
    return HostCard(
        name=examination.name,
        probe_address=server.address if server else "",
        mark=same_host_mark(),
        protocol=VERSION,
        versions={
            "undertow": software.undertow,
            "torch": software.torch.package.found,
            "python": software.python.found,
        },
        mtu=interface.mtu if interface else 0,
        speed_mbit=interface.speed_mbit if interface else 0,
        settings=select_common(facts.variables),
        findings=pick(alone.findings, Level.WARNING, Level.FAILURE),
        hosts=examination.scope.hosts,
        timeout_s=examination.timeout_s,
    )
