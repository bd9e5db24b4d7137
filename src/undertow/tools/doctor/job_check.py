"""Runs the check of `undertow run --check`: the hosts of a job examine each other before any worker starts.

In: the job, this host's assignment.  Out: a `Report`, with the same verdict on all hosts.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from undertow.engine.coordinator.rendezvous import attend
from undertow.launch.host_rendezvous import HostAssignment
from undertow.launch.job import DEFAULT_MASTER_PORT, Job, read_job_settings
from undertow.tools.doctor.collect import JobContext, resolve
from undertow.tools.doctor.examination import Examination, examine_host, examine_hosts
from undertow.tools.doctor.facts import Scope
from undertow.tools.doctor.findings import Finding
from undertow.tools.doctor.interfaces import is_loopback
from undertow.tools.doctor.rendezvous import HostCard, HostGroup, decode, run_one
from undertow.tools.doctor.view import Report

if TYPE_CHECKING:
    from undertow.progress import Progress


def examine_job(
    job: Job, assignment: HostAssignment, environs: tuple[Mapping[str, str], Mapping[str, str]], progress: Progress
) -> Report:
    """Examine the hosts of a job; `environs` are its environment with and without what the command line added."""
    examination = _prepare(job, environs)
    if job.nnodes == 1:
        return examine_host(examination, progress)
    return examine_hosts(examination, lambda facts, card: _join(job, assignment, card), progress)


def _prepare(job: Job, environs: tuple[Mapping[str, str], Mapping[str, str]]) -> Examination:
    environ, outer = environs
    is_alone = job.nnodes == 1
    # All hosts have connected to this address: if it is loopback, all of them are on this machine.
    is_local = any(map(is_loopback, resolve([job.master_addr])[job.master_addr]))
    context = JobContext(
        environ=environ,
        outer=outer,
        address=read_job_settings(environ).address,
        target="" if is_alone else job.master_addr,
        target_origin="host 0 of the job",
        arguments={} if is_alone else _list_arguments(job, environ),
    )
    scope = Scope(job.nnodes, job.nproc, is_local)
    return Examination(name=socket.gethostname(), scope=scope, context=context)


def _list_arguments(job: Job, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the settings given as arguments: those that differ between the job and its environment."""
    settings = read_job_settings(environ)
    port = settings.master_port or DEFAULT_MASTER_PORT
    given = {
        "master_addr": (job.master_addr, settings.master_addr),
        "master_port": (job.master_port, port),
        "start_timeout_s": (job.start_timeout_s, settings.start_timeout_s),
    }
    return {name: value for name, (value, other) in given.items() if value != other}


def _join(job: Job, assignment: HostAssignment, card: HostCard) -> tuple[HostGroup | None, list[Finding]]:
    address, token, rank, size = assignment.rendezvous, assignment.token.encode(), job.node_rank, job.nnodes

    def exchange(name: str, payload: bytes, timeout_s: float) -> list[bytes]:
        return attend(address, token, name=name, rank=rank, size=size, payload=payload, timeout_s=timeout_s)

    payload = msgspec.msgpack.encode(card)
    received = run_one(lambda: exchange("doctor: cards", payload, job.start_timeout_s))
    cards = make_names_unique([decode(one, HostCard, sender=sender) for sender, one in enumerate(received)])
    return HostGroup(rank, cards, token, exchange), []


def make_names_unique(cards: Sequence[HostCard]) -> list[HostCard]:
    """Append the host's number to names that several hosts have."""
    count = Counter(card.name for card in cards)
    return [
        msgspec.structs.replace(card, name=f"{card.name} (host {rank})") if count[card.name] > 1 else card
        for rank, card in enumerate(cards)
    ]
