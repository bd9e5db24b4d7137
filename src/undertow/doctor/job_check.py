"""`undertow run --check`: the hosts of a job examine each other when they have met, before any worker starts.

In: the job, this host's seat in it.  Out: a `Report`, with the same verdict on all hosts.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from undertow.coordinator.rendezvous import attend
from undertow.doctor.cards import Card, Circle, decode
from undertow.doctor.collect import Question
from undertow.doctor.examination import Patient, examine_host, examine_hosts
from undertow.doctor.facts import Scope
from undertow.doctor.findings import Finding
from undertow.doctor.interfaces import is_loopback
from undertow.doctor.names import resolve
from undertow.doctor.patience import run_one
from undertow.doctor.view import Report
from undertow.launch.job import DEFAULT_MASTER_PORT, Job, read_job_settings
from undertow.launch.nodes import Seat

if TYPE_CHECKING:
    from undertow.watch import Watch


def examine_job(job: Job, seat: Seat, environs: tuple[Mapping[str, str], Mapping[str, str]], watch: Watch) -> Report:
    """`environs`: of the job, with what the command line added, and as it was before that."""
    patient = _ask(job, environs)
    if job.nnodes == 1:
        return examine_host(patient, watch)
    return examine_hosts(patient, lambda facts, card: _form(job, seat, card), watch)


def _ask(job: Job, environs: tuple[Mapping[str, str], Mapping[str, str]]) -> Patient:
    environ, outer = environs
    is_alone = job.nnodes == 1
    # They have met there: if it is a loopback address, all of them are on this machine.
    is_local = any(map(is_loopback, resolve([job.master_addr])[job.master_addr]))
    question = Question(
        environ=environ,
        outer=outer,
        address=read_job_settings(environ).address,
        target="" if is_alone else job.master_addr,
        target_is="host 0 of the job",
        arguments={} if is_alone else _list_arguments(job, environ),
    )
    scope = Scope(job.nnodes, job.nproc, is_local)
    return Patient(name=socket.gethostname(), scope=scope, question=question)


def _list_arguments(job: Job, environ: Mapping[str, str]) -> dict[str, object]:
    """What the job has otherwise than its environment says it, somebody gave as an argument."""
    settings = read_job_settings(environ)
    port = settings.master_port or DEFAULT_MASTER_PORT
    given = {
        "master_addr": (job.master_addr, settings.master_addr),
        "master_port": (job.master_port, port),
        "start_timeout_s": (job.start_timeout_s, settings.start_timeout_s),
    }
    return {name: value for name, (value, other) in given.items() if value != other}


def _form(job: Job, seat: Seat, card: Card) -> tuple[Circle | None, list[Finding]]:
    def exchange(meeting: str, payload: bytes, timeout_s: float) -> list[bytes]:
        return attend(
            seat.rendezvous,
            seat.token.encode(),
            meeting=meeting,
            rank=job.node_rank,
            size=job.nnodes,
            payload=payload,
            timeout_s=timeout_s,
        )

    payload = msgspec.msgpack.encode(card)
    heard = run_one(lambda: exchange("doctor: cards", payload, job.start_timeout_s))
    cards = tell_apart([decode(one, Card) for one in heard])
    return Circle(job.node_rank, cards, seat.token.encode(), exchange), []


def tell_apart(cards: Sequence[Card]) -> list[Card]:
    """Hosts of one name get their number as well."""
    count = Counter(card.name for card in cards)
    return [
        msgspec.structs.replace(card, name=f"{card.name} (host {rank})") if count[card.name] > 1 else card
        for rank, card in enumerate(cards)
    ]
