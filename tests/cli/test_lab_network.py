"""Emulated hosts are apart, their links are as fast as they claim, and the kernel counts what they send."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable

import pytest

from tests.support.labs import in_lab, needs_lab
from undertow.errors import LabError
from undertow.tools.lab import link_check
from undertow.tools.lab.iproute import INTERFACE, port_of, run_batch, shape_command
from undertow.tools.lab.isolation import run_isolated
from undertow.tools.lab.link_check import check_links
from undertow.tools.lab.network import Counters, Host, Network, open_network
from undertow.tools.lab.worker_environments import open_rendezvous

pytestmark = needs_lab


def connect(sender: Host, receiver: Host, address: str | None = None) -> tuple[socket.socket, socket.socket]:
    with receiver.entered(), socket.create_server((address or receiver.address, 0)) as listener:
        with sender.entered():
            outgoing = socket.create_connection(listener.getsockname(), timeout=10)
        return outgoing, listener.accept()[0]


def run(host: Host, *command: str) -> str:
    with host.entered():
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_hosts_have_addresses_and_names_of_their_own() -> None:
    def body(network: Network) -> None:
        assert [host.address for host in network.hosts] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
        for host in network.hosts:
            assert run(host, "hostname").strip() == host.name == f"host{host.index}"
            assert f" {host.address}/24 " in run(host, "ip", "-o", "address", "show", "dev", INTERFACE)
            with host.entered():
                assert {socket.gethostbyname(peer.name) for peer in network.hosts} == {
                    peer.address for peer in network.hosts
                }
                assert socket.gethostbyaddr(host.address)[0] == host.name

    in_lab(3, body)


def test_a_hosts_loopback_is_its_own() -> None:
    def body(network: Network) -> None:
        first, second = network.hosts
        for sock in connect(first, first, "127.0.0.1"):
            sock.close()
        with pytest.raises(ConnectionRefusedError):
            connect(second, first, "127.0.0.1")

    in_lab(2, body)


def test_a_host_is_left_for_where_one_came_from() -> None:
    def body(network: Network) -> None:
        def here() -> tuple[str, str]:
            return os.readlink("/proc/thread-self/ns/net"), socket.gethostname()

        first, second = network.hosts
        home = here()
        with first.entered():
            outer = here()
            with second.entered():
                assert len({home, outer, here()}) == 3
            assert here() == outer
            with pytest.raises(ZeroDivisionError), second.entered():
                _ = 1 / 0
            assert here() == outer
        assert here() == home

    in_lab(2, body)


def test_every_host_reaches_every_other_also_when_they_are_many() -> None:
    # 40 x 39 acquaintances: more than the 1024 answers that the kernel remembers for all namespaces together.
    def body(network: Network) -> None:
        for sender in network.hosts:
            for receiver in network.hosts:
                for sock in connect(sender, receiver):
                    sock.close()

    in_lab(40, body)


def test_the_kernel_counts_what_was_sent() -> None:
    size = 5_000_000

    def body(network: Network) -> None:
        before = network.counters()
        outgoing, incoming = connect(network.hosts[0], network.hosts[1])
        with outgoing, incoming:
            pump = threading.Thread(target=outgoing.sendall, args=[bytes(size)])
            pump.start()
            received = 0
            while received < size:
                received += len(incoming.recv(1 << 20))
            pump.join()
        sender, receiver, bystander = map(subtract, network.counters(), before)
        near_size = pytest.approx(size, rel=0.03)
        assert sender.payload_out == near_size
        assert receiver.payload_in == near_size
        assert sender.bytes_in == pytest.approx(receiver.bytes_out, abs=1000)  # acknowledgements
        assert sender.bytes_in < 0.03 * size
        # Nobody talks without being asked; the switch asks around once, before it knows who is where.
        assert bystander.bytes_out == 0
        assert bystander.bytes_in < 200

    in_lab(3, body)


def subtract(after: Counters, before: Counters) -> Counters:
    return Counters(*(getattr(after, name) - getattr(before, name) for name in vars(after)))


def read_rates(network: Network) -> set[str]:
    """The limits at both ends of every link, as tc shows them."""
    shown = [subprocess.run(["tc", "qdisc"], capture_output=True, text=True, check=True).stdout]
    shown += [run(host, "tc", "qdisc") for host in network.hosts]
    lines = [line for text in shown for line in text.splitlines() if "dev h" in line or f"dev {INTERFACE}" in line]
    assert len(lines) == 2 * len(network.hosts)
    return {line.split("rate ")[1].split()[0] if "tbf" in line else line.split()[1] for line in lines}


def test_the_rate_can_be_changed_and_taken_off() -> None:
    def body(network: Network) -> None:
        assert read_rates(network) == {"noqueue"}
        network.shape(None)
        network.shape(1e9)
        assert read_rates(network) == {"1Gbit"}
        network.shape(50e6)
        assert read_rates(network) == {"50Mbit"}
        network.shape(None)
        assert read_rates(network) == {"noqueue"}
        network.shape(None)
        network.shape(2e9)
        assert read_rates(network) == {"2Gbit"}

    in_lab(2, body)


# So slow that a bucket holds 20 ms of it: a machine that stands still for a moment loses no tokens.
PATIENT = 3e6


def test_good_links_pass_the_check() -> None:
    def body(network: Network) -> None:
        network.shape(PATIENT)
        assert check_links(network, PATIENT) == pytest.approx(1, abs=link_check.TOLERANCE)

    in_lab(3, body)


def slow_down_sending(network: Network, host: int, rate: float) -> None:
    with network.hosts[host].entered():
        run_batch("tc", [shape_command(INTERFACE, rate, is_port=False)])


def slow_down_receiving(network: Network, host: int, rate: float) -> None:
    run_batch("tc", [shape_command(port_of(host), rate, is_port=True)])


@pytest.mark.parametrize(
    ("spoil", "link"), [(slow_down_sending, "from host 1 to host 2"), (slow_down_receiving, "from host 0 to host 1")]
)
def test_a_link_at_half_its_rate_is_found(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Network, int, float], None], link: str
) -> None:
    monkeypatch.setattr(link_check, "MEASURE_S", (0.4, 0.5))
    monkeypatch.setattr(link_check, "TOLERANCE", 0.25)  # the good links may suffer from a busy machine

    def body(network: Network) -> None:
        network.shape(PATIENT)
        spoil(network, 1, PATIENT / 2)
        with pytest.raises(LabError, match=rf"the link {link} carries .* Mbit/s instead of 3 Mbit/s"):
            check_links(network, PATIENT)

    in_lab(3, body)


def test_links_that_are_faster_than_they_claim_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_check, "MEASURE_S", (0.4, 0.5))

    def body(network: Network) -> None:
        network.shape(40e6)
        with pytest.raises(LabError, match="Its shaping has no effect"):
            check_links(network, 20e6)

    in_lab(2, body)


def test_a_link_that_is_down_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_check, "CONNECT_S", 0.2)

    def body(network: Network) -> None:
        run_batch("ip", [f"link set {port_of(1)} down"])
        with pytest.raises(LabError, match="host 0 cannot connect to host 1"):
            check_links(network, 1e9)

    in_lab(2, body)


def test_a_tool_that_refuses_is_quoted() -> None:
    def body(network: Network) -> None:
        with pytest.raises(LabError, match=r"ip failed: .*already exists|ip failed: .*File exists"), open_network(1):
            pass

    in_lab(1, body)


def test_one_network_after_the_other_fits_in_one_world() -> None:
    def work() -> int:
        for _ in range(3):
            with open_network(2) as network:
                for sock in connect(network.hosts[0], network.hosts[1]):
                    sock.close()
            assert [name for _, name in socket.if_nameindex()] == ["lo"]
        return 0

    assert run_isolated(work) == 0


def test_workers_of_a_meeting_use_the_link() -> None:
    def body(network: Network) -> None:
        outer = {"UNDERTOW_ADDRESS": "192.0.2.1", "GLOO_SOCKET_IFNAME": "wlan0"}
        with open_rendezvous(network, outer) as environments:
            for environment in environments:
                assert environment["MASTER_ADDR"] == "10.77.0.1"
                assert environment["GLOO_SOCKET_IFNAME"] == INTERFACE
                assert "UNDERTOW_ADDRESS" not in environment
            address, _, port = environments[1]["UNDERTOW_RENDEZVOUS"].partition(":")
            with network.hosts[1].entered():
                socket.create_connection((address, int(port)), timeout=10).close()
            with network.hosts[0].entered():
                socket.create_server(("10.77.0.1", int(environments[0]["MASTER_PORT"]))).close()

    in_lab(2, body)
