"""The examination: of this host alone, or of several together.

In: what to look at.  Out: a `Report`, whose findings decide about the exit code.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from undertow.core.version import VERSION
from undertow.doctor.cards import Card, Circle
from undertow.doctor.cluster import judge_cluster
from undertow.doctor.collect import Question, collect
from undertow.doctor.door import Door
from undertow.doctor.facts import Host, Scope
from undertow.doctor.findings import Finding, Level, note, pick
from undertow.doctor.interfaces import judge_network
from undertow.doctor.machine import judge_machine
from undertow.doctor.pairs import survey
from undertow.doctor.software import judge_software
from undertow.doctor.variables import judge_variables, select_common
from undertow.doctor.view import Report
from undertow.wire.routes import same_host_mark

if TYPE_CHECKING:
    from undertow.watch import Watch

# Knowing this host, hand over its card; come back with the circle, or with the reasons why there is none.
Form = Callable[[Host, Card], tuple[Circle | None, list[Finding]]]


@dataclass(frozen=True, kw_only=True)
class Patient:
    """What is examined, and for what kind of job."""

    name: str
    scope: Scope
    question: Question
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


def examine_host(patient: Patient, watch: Watch) -> Report:
    """Only what this host knows of itself."""
    facts = collect(patient.question, watch.say)
    return Report(patient.name, patient.scope.hosts, facts, judge_host(facts, patient.scope))


def examine_hosts(patient: Patient, form: Form, watch: Watch) -> Report:
    """This host, and with the others the ways between them.  Everybody comes to the same verdict."""
    alone = examine_host(patient, watch)
    if not patient.has_token:
        text = (
            "not set: the first host gives one to whoever asks at the start; UNDERTOW_TOKEN on every host closes that"
        )
        alone = msgspec.structs.replace(alone, findings=[*alone.findings, note("token", text)])
    with ExitStack() as stack:
        door = _open_door(alone.facts, stack)
        circle, absent = form(alone.facts, _make_card(patient, alone, door))
        if circle is None:
            return msgspec.structs.replace(alone, findings=[*alone.findings, *absent])
        if door is not None:
            door.serve(circle.token)
        surveyed = survey(circle, duration_s=patient.duration_s, watch=watch)
    first = circle.cards[0].name
    return msgspec.structs.replace(
        alone,
        findings=[
            *pick(alone.findings, Level.OK, Level.NOTE),
            *(finding for card in circle.cards for finding in _sign(card)),
            *absent,
            *judge_cluster(circle.cards, surveyed),
        ],
        cards=circle.cards,
        survey=surveyed,
        see="" if circle.rank == 0 else first,
    )


def _open_door(facts: Host, stack: ExitStack) -> Door | None:
    """None if there is no address for it: that is among the findings already."""
    if facts.network.use.error or facts.network.bind_error:
        return None
    return stack.enter_context(closing(Door(facts.network.use.address)))


def _make_card(patient: Patient, alone: Report, door: Door | None) -> Card:
    facts = alone.facts
    interface = facts.interface
    software = facts.software
    return Card(
        name=patient.name,
        door=door.address if door else "",
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
        hosts=patient.scope.hosts,
        timeout_s=patient.timeout_s,
    )


def _sign(card: Card) -> list[Finding]:
    """What is wrong with one host, under its name."""
    return [msgspec.structs.replace(finding, host=card.name) for finding in card.findings]
