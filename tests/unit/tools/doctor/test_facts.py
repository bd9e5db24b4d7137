"""How the doctor collects facts: netlink, metadata, control groups, the child process that imports torch."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from undertow.errors import ConfigError
from undertow.tools.doctor import collect
from undertow.tools.doctor.collect import (
    JobContext,
    choose_address,
    read_answer,
    read_quota,
    read_requirement,
    try_port,
)
from undertow.tools.doctor.facts import AddressChoice, Interface, Package
from undertow.tools.doctor.machine import is_older
from undertow.tools.doctor.netlink import list_interfaces, parse_interfaces
from undertow.tools.doctor.request import resolve

TORCH = Package("torch", "2.4", "2.6.0")


def attribute(kind: int, value: bytes) -> bytes:
    return (struct.pack("=HH", 4 + len(value), kind) + value).ljust((4 + len(value) + 3) & ~3, b"\0")


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + body


def link(index: int, flags: int, name: bytes, mtu: int) -> bytes:
    fixed = struct.pack("=BxHiII", 0, 1, index, flags, 0)
    return message(16, fixed + attribute(3, name + b"\0") + attribute(4, struct.pack("=I", mtu)))


def address(index: int, *attributes: bytes) -> bytes:
    return message(20, struct.pack("=BBBBI", 2, 24, 0, 0, index) + b"".join(attributes))


DONE = message(3, bytes(4))


def test_the_kernels_lists_become_interfaces() -> None:
    links = link(1, 0x49, b"lo", 65536) + link(7, 0x1043, b"eth0", 1500) + link(8, 0x1003, b"unplugged", 1500) + DONE
    own, peer = socket.inet_aton("10.0.0.1"), socket.inet_aton("10.0.0.2")
    six = socket.inet_pton(socket.AF_INET6, "fd00::1")
    addresses = address(7, attribute(1, peer), attribute(2, own)) + address(7, attribute(1, six)) + DONE
    assert parse_interfaces(links, addresses) == [
        Interface("lo", True, True, 65536, []),
        Interface("eth0", True, False, 1500, ["10.0.0.1", "fd00::1"]),
        Interface("unplugged", False, False, 1500, []),
    ]


@pytest.mark.parametrize("data", [b"", b"\0" * 40, b"\xff" * 40, link(1, 0x49, b"lo", 65536)[:-3], message(16, b"x")])
def test_a_list_that_is_cut_or_nonsense_ends_nothing(data: bytes) -> None:
    assert len(parse_interfaces(data, data)) <= 1


@pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux's")
def test_this_hosts_loopback_is_found() -> None:
    (loopback,) = [one for one in list_interfaces() if one.is_loopback]
    assert (loopback.name, loopback.is_up) == ("lo", True)
    assert "127.0.0.1" in loopback.addresses
    assert loopback.mtu >= 1280


@pytest.mark.parametrize(
    ("text", "name", "least"),
    [
        ('torch>=2.4; extra == "torch"', "torch", "2.4"),
        ("numpy", "numpy", ""),
        ("typer<1,>=0.12.3", "typer", "0.12.3"),
        ("rich (>=13)", "rich", "13"),
        ("uvicorn[standard]>=0.30", "uvicorn", "0.30"),
    ],
)
def test_requirements_are_read(text: str, name: str, least: str) -> None:
    assert read_requirement(text) == (name, least)


def test_what_undertow_needs_is_what_its_metadata_say() -> None:
    python, packages, torch = collect.list_packages()
    assert python.least == "3.11"
    assert {"numpy", "msgspec", "typer", "rich"} <= {package.name for package in packages}
    assert all(package.found for package in packages)
    assert (torch.name, torch.least) == ("torch", "2.4")


@pytest.mark.parametrize(
    ("found", "least", "older"),
    [
        ("2.3.1", "2.4", True),
        ("2.10", "2.4", False),
        ("2.4", "2.4", False),
        ("2.4.0+cu121", "2.4", False),
        ("1", "", False),
    ],
)
def test_versions_are_compared_as_numbers(found: str, least: str, older: bool) -> None:
    assert is_older(found, least) is older


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", 0.0), ("250000 100000", 2.5), ("-1 100000", 0.0), ("", 0.0), ("1 0", 0.0), ("50000 100000", 0.5)],
)
def test_a_containers_share_is_read(text: str, cores: float) -> None:
    assert read_quota(text) == cores


def test_a_torch_that_works_is_described_by_its_last_line() -> None:
    words = 'a banner of some package\n{"threads": 4, "devices": ["H100"], "build": "CUDA 12.4"}\n'
    torch = read_answer(TORCH, 0, words, "a warning\n")
    assert (torch.error, torch.threads, torch.devices, torch.build) == ("", 4, ["H100"], "CUDA 12.4")


@pytest.mark.parametrize(
    ("code", "out", "err", "error"),
    [
        (1, "", "Traceback:\n  line\nImportError: libc10.so\n\n", "ImportError: libc10.so"),
        (-11, "", "", "importing it ends with SIGSEGV"),
        (1, "", "", "it printed nothing"),
        (0, "hello", "", "is invalid"),
    ],
)
def test_a_torch_that_does_not_work_is_quoted_in_one_line(code: int, out: str, err: str, error: str) -> None:
    found = read_answer(TORCH, code, out, err).error
    assert error in found
    assert "\n" not in found


def ask(**fields: str) -> AddressChoice:
    return choose_address(JobContext(environ={}, outer={}, **fields))  # type: ignore[arg-type]


def no_route(host: str) -> str:
    raise OSError(101, "Network is unreachable")


def unknown(host: str) -> str:
    raise ConfigError("host 'a' is not known here")


@pytest.mark.parametrize(
    ("route", "context", "use"),
    [
        (None, {}, AddressChoice("127.0.0.1", "only this host takes part")),
        (None, {"address": "10.0.0.5", "target": "a"}, AddressChoice("10.0.0.5", "UNDERTOW_ADDRESS is set to it")),
        (
            lambda host: "10.0.0.5",
            {"target": "a", "target_origin": "X"},
            AddressChoice("10.0.0.5", "the route to a (X) starts there"),
        ),
        (
            lambda host: host,
            {"target": "10.0.0.1", "target_origin": "X"},
            AddressChoice("10.0.0.1", "10.0.0.1 (X) is this host's own"),
        ),
        (
            no_route,
            {"target": "a", "target_origin": "X"},
            AddressChoice("", "", "there is no route to a (X): Network is unreachable"),
        ),
        (unknown, {"target": "a", "target_origin": "X"}, AddressChoice("", "", "host 'a' is not known here")),
    ],
)
def test_the_address_is_chosen_as_workers_would(
    monkeypatch: pytest.MonkeyPatch, route: Callable[[str], str] | None, context: dict[str, str], use: AddressChoice
) -> None:
    monkeypatch.setattr(collect, "route_to", route)
    assert ask(**context) == use


def test_a_port_in_use_is_distinguished_from_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert try_port("127.0.0.1", server.getsockname()[1]) == "Address already in use"
    assert try_port("127.0.0.1", 0) == ""
    assert try_port("192.0.2.77", 0) != ""


def test_names_that_no_host_can_have_resolve_to_nothing() -> None:
    names = ["127.0.0.1", "no host", "." * 70, "a" * 300, ""]
    assert resolve(names[:4]) == {"127.0.0.1": ["127.0.0.1"], **{name: [] for name in names[1:4]}}


def test_a_resolver_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import threading

    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: release.wait(30) and [])
    try:
        assert resolve(["slow"], limit_s=0.01) == {"slow": []}
    finally:
        release.set()
