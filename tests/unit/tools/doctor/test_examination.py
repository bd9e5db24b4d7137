"""Findings about one host: tables of facts, and the finding that each must lead to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.doctor_facts import ETH0, HEALTHY, LO, TORCH
from undertow.tools.doctor.examination import judge_host
from undertow.tools.doctor.facts import AddressChoice, Host, Interface, Package, Scope
from undertow.tools.doctor.findings import Finding, Level

replace = msgspec.structs.replace


def change(part: str, **fields: Any) -> Host:
    return replace(HEALTHY, **{part: replace(getattr(HEALTHY, part), **fields)})


def torch(**fields: Any) -> Host:
    return change("software", torch=replace(TORCH, **fields))


def use(address: str, interfaces: list[Interface] | None = None, **fields: Any) -> Host:
    return change("network", use=AddressChoice(address, "reasons"), interfaces=interfaces or [LO, ETH0], **fields)


def eth0(**fields: Any) -> Host:
    return change("network", interfaces=[LO, replace(ETH0, **fields)])


def find(facts: Host, scope: Scope, subject: str) -> Finding:
    """Return the worst finding about this subject."""
    order = list(Level)
    found = [finding for finding in judge_host(facts, scope) if finding.subject == subject]
    return max(found, key=lambda finding: order.index(finding.level))


ALONE, THREE = Scope(), Scope(hosts=3)
UP_TO_CORES = Scope(hosts=2, nproc=8)
CASES = [
    # Python, packages, torch.
    (HEALTHY, ALONE, "python", Level.OK, "3.12.1"),
    (change("software", python=Package("python", "3.11", "3.9.2")), ALONE, "python", Level.FAILURE, "3.9.2 is too old"),
    (HEALTHY, ALONE, "packages", Level.OK, "numpy 2.1.0"),
    (change("software", packages=[Package("numpy", "", "")]), ALONE, "numpy", Level.FAILURE, "not installed"),
    (change("software", packages=[Package("rich", "13", "9.2")]), ALONE, "rich", Level.FAILURE, "9.2 is too old"),
    (change("software", packages=[]), ALONE, "packages", Level.OK, "not installed by pip"),
    (HEALTHY, ALONE, "torch", Level.OK, "2.6.0 (CPU build)"),
    (torch(package=Package("torch", "2.4", "")), ALONE, "torch", Level.FAILURE, "torch is not installed"),
    (torch(package=Package("torch", "2.4", "2.3.1+cu121")), ALONE, "torch", Level.FAILURE, "2.3.1+cu121 is too old"),
    (torch(package=Package("torch", "2.4", "2.10.0")), ALONE, "torch", Level.OK, "2.10.0"),
    (torch(error="ImportError: libc10.so"), ALONE, "torch", Level.FAILURE, "cannot be used: ImportError: libc10.so"),
    # Accelerators.
    (HEALTHY, ALONE, "devices", Level.OK, "no accelerator"),
    (change("software", has_nvidia_card=True), ALONE, "devices", Level.WARNING, "an NVIDIA card that torch 2.6.0"),
    (torch(devices=["H100", "H100"]), Scope(nproc=2), "devices", Level.OK, "2 (H100)"),
    (torch(devices=["H100", "H100"]), Scope(nproc=3), "devices", Level.WARNING, "3 workers for 2 accelerators"),
    # The interface in use.
    (HEALTHY, THREE, "interface in use", Level.OK, "eth0 (10.0.0.1, MTU 1500, 10 Gbit/s), because the route to 10.0.0"),
    (use("127.0.0.1"), ALONE, "interface in use", Level.OK, "lo (127.0.0.1, MTU 65536), because reasons"),
    (use("127.0.0.1"), THREE, "interface in use", Level.FAILURE, "cannot reach a loopback address"),
    (use("127.0.1.1"), Scope(hosts=3, is_local=True), "interface in use", Level.OK, "127.0.1.1"),
    (use("127.0.0.1", [replace(LO, is_up=False)]), ALONE, "interface in use", Level.FAILURE, "loopback is down"),
    (use("10.9.9.9"), ALONE, "interface in use", Level.FAILURE, "10.9.9.9 is not an address of this host"),
    (change("network", use=AddressChoice("", "", "no route")), THREE, "interface in use", Level.FAILURE, "no route"),
    (eth0(is_up=False), THREE, "interface in use", Level.FAILURE, "eth0 (10.0.0.1, MTU 1500, 10 Gbit/s, down)"),
    (eth0(name="docker0"), THREE, "interface in use", Level.WARNING, "containers or virtual machines"),
    (eth0(name="docker0"), ALONE, "interface in use", Level.OK, "docker0"),
    (eth0(name="wlan0"), THREE, "interface in use", Level.WARNING, "wireless link"),
    (eth0(speed_mbit=100), THREE, "interface in use", Level.WARNING, "only 100 Mbit/s"),
    (eth0(speed_mbit=0), THREE, "interface in use", Level.OK, "eth0 (10.0.0.1, MTU 1500), because"),
    (eth0(mtu=576), THREE, "interface in use", Level.WARNING, "an MTU of 576"),
    (HEALTHY, ALONE, "interfaces", Level.OK, "lo (127.0.0.1, ::1, MTU 65536); eth0 (10.0.0.1, MTU 1500, 10 Gbit/s)"),
    (eth0(is_up=False), ALONE, "interfaces", Level.OK, "down: eth0"),
    (change("network", interfaces=[]), ALONE, "interfaces", Level.NOTE, "does not list them"),
    # Ports and names.
    (HEALTHY, THREE, "ports", Level.OK, "workers use ports 32768 to 60999"),
    (HEALTHY, ALONE, "ports", Level.OK, "can be bound at 10.0.0.1"),
    (change("network", bind_error="not possible"), ALONE, "ports", Level.FAILURE, "at 10.0.0.1: not possible"),
    (change("network", master_port=29500), THREE, "ports", Level.OK, "also 29500"),
    (
        change("network", master_port=29500, master_error="Address already in use"),
        THREE,
        "ports",
        Level.FAILURE,
        "port 29500 of the rendezvous cannot be bound: Address already in use",
    ),
    (
        change("network", hostname="a", hostname_addresses=["127.0.1.1"]),
        THREE,
        "host name",
        Level.NOTE,
        "a is 127.0.1.1 here",
    ),
    # Cores against threads.
    (HEALTHY, ALONE, "cores", Level.OK, "8 cores for 1 worker with 8 threads each (torch's own choice)"),
    (HEALTHY, THREE, "cores", Level.NOTE, "none is left for undertow's own thread"),
    (HEALTHY, Scope(nproc=4), "cores", Level.OK, "4 workers with 1 thread each (undertow run sets OMP_NUM_THREADS)"),
    (HEALTHY, UP_TO_CORES, "cores", Level.NOTE, "8 workers with 1 thread each"),
    (HEALTHY, Scope(nproc=9), "cores", Level.WARNING, "workers wait for each other"),
    (torch(devices=["H100"] * 9), Scope(nproc=9), "cores", Level.WARNING, "threads wait for each other"),
    (
        change("machine", omp_num_threads="4"),
        Scope(nproc=3),
        "cores",
        Level.WARNING,
        "4 threads each (OMP_NUM_THREADS)",
    ),
    (change("machine", omp_num_threads="4,2"), ALONE, "cores", Level.OK, "4 threads each"),
    (change("machine", omp_num_threads="many"), ALONE, "cores", Level.WARNING, "OMP_NUM_THREADS='many'"),
    (change("machine", omp_num_threads="0"), ALONE, "cores", Level.WARNING, "OMP_NUM_THREADS='0'"),
    (change("machine", quota_cores=2.5), ALONE, "cores", Level.WARNING, "2.5 cores (this container's share of 8)"),
    # Open files.
    (HEALTHY, ALONE, "open files", Level.OK, "1024 allowed"),
    (HEALTHY, Scope(hosts=128, nproc=8), "open files", Level.FAILURE, "1024 workers need about 1200"),
]


@pytest.mark.parametrize(("facts", "scope", "subject", "level", "words"), CASES)
def test_facts_lead_to_their_finding(facts: Host, scope: Scope, subject: str, level: Level, words: str) -> None:
    finding = find(facts, scope, subject)
    assert finding.level is level, finding
    assert words in finding.text
    assert bool(finding.advice) is (level in (Level.WARNING, Level.FAILURE))


def test_the_advice_names_numbers_that_would_do() -> None:
    assert find(HEALTHY, Scope(nproc=9), "cores").advice.endswith("-n 8")
    assert find(change("machine", omp_num_threads="4"), Scope(nproc=3), "cores").advice == "set OMP_NUM_THREADS=2"
    assert find(change("machine", quota_cores=2.5), ALONE, "cores").advice == "set OMP_NUM_THREADS=2"
    assert find(torch(devices=["H100"]), Scope(nproc=3), "devices").advice.endswith("-n 1")
    assert "10.0.0.1" in find(use("10.9.9.9"), ALONE, "interface in use").advice
