"""The launchers' connections: messages reach all launchers, and strangers are refused."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from undertow.engine.coordinator.rendezvous import RendezvousServer, attend, parse_address
from undertow.engine.coordinator.rendezvous_table import WORKERS_MET
from undertow.engine.wire.auth import Role, shake_hands
from undertow.errors import PeerLost, Refused
from undertow.launch.host_watch import HostRanks
from undertow.launch.launcher_link import LauncherLink, _Connection
from undertow.runtime.launcher_notes import Mark, waiting

TOKEN = b"token"
HOSTS = [HostRanks(name, rank, 1) for rank, name in enumerate("abc")]
HANG_S = 20.0


class Launchers:
    """The launchers of three hosts, all in this process."""

    def __init__(self) -> None:
        self.all = [LauncherLink() for _ in HOSTS]
        self.address = self.all[0].listen("127.0.0.1", TOKEN)
        self.all[0].start(0, HOSTS)
        for node_rank, launcher in enumerate(self.all[1:], start=1):
            launcher.dial(self.address, TOKEN, node_rank=node_rank, timeout_s=HANG_S)
            launcher.start(node_rank, HOSTS)
        for launcher in self.all:
            launcher.wait_for_start()

    def wait_for_cause(self, node_rank: int) -> str:
        assert select.select([self.all[node_rank]], [], [], HANG_S)[0]
        return self.all[node_rank].cause

    def wait_for_end(self, node_rank: int) -> None:
        thread = self.all[node_rank]._loop._thread
        thread.join(HANG_S)
        assert not thread.is_alive()


@pytest.fixture
def launchers() -> Iterator[Launchers]:
    made = Launchers()
    yield made
    for launcher in reversed(made.all):
        launcher.close()


def test_a_report_of_one_host_reaches_all_others(launchers: Launchers) -> None:
    launchers.all[1].post(lambda watch: watch.note_failed(1, "failed with exit code 3"))
    causes = {launchers.wait_for_cause(0), launchers.wait_for_cause(2)}
    assert causes == {"rank 1 on host b failed with exit code 3 before the workers had met"}
    assert launchers.all[1].cause == ""


def test_a_normal_end_of_a_launcher_is_not_a_loss_but_one_with_a_reason_is(launchers: Launchers) -> None:
    launchers.all[1].close()
    launchers.all[1] = LauncherLink()
    launchers.all[2].close("gave up (no disk)")
    launchers.all[2] = LauncherLink()
    assert launchers.wait_for_cause(0) == (
        "the launcher on host c (--node-rank 2, rank 2) gave up (no disk) before the workers had met"
    )


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.ECONNRESET])
def test_an_unreachable_host_counts_as_silent_not_as_killed(
    launchers: Launchers, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(connection: object) -> None:
        raise OSError(code, "what the kernel says after fifteen minutes")

    monkeypatch.setattr(_Connection, "receive", fail)
    launchers.all[0].post(
        lambda watch: watch.tick(time.monotonic())
    )  # sends a heartbeat, which the others fail to read
    is_loss = code == errno.ECONNRESET
    if is_loss:
        assert "was killed, or its connection was cut" in launchers.wait_for_cause(1)
    else:
        while launchers.all[1]._connections:  # until the connection is dropped
            time.sleep(0.01)
        assert launchers.all[1].cause == ""


def test_strangers_are_ignored(launchers: Launchers) -> None:
    with closing(LauncherLink()) as stranger, pytest.raises(Refused):
        stranger.dial(launchers.address, b"wrong", node_rank=1, timeout_s=HANG_S)
    with socket.create_connection(parse_address(launchers.address), timeout=HANG_S) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(1) == b""
    launchers.all[0].post(lambda watch: watch.note_met())
    for node_rank in range(3):
        launchers.wait_for_end(node_rank)
        assert launchers.all[node_rank].cause == ""


def test_a_rendezvous_server_reports_that_the_workers_have_met() -> None:
    met = []
    server = RendezvousServer("127.0.0.1", 0, TOKEN, on_complete=met.append)
    server.start()
    attend(server.address, TOKEN, name=WORKERS_MET, rank=0, size=1, payload=b"", timeout_s=HANG_S)
    server.close()
    assert met == [WORKERS_MET]


def test_the_loss_of_a_launcher_before_the_start_ends_the_wait() -> None:
    spoke = LauncherLink()
    with closing(LauncherLink()) as hub:
        address = hub.listen("127.0.0.1", TOKEN)
        hub.start(0, HOSTS)
        spoke.dial(address, TOKEN, node_rank=1, timeout_s=HANG_S)
        spoke.start(1, HOSTS)
        spoke.close("was interrupted")  # while the hub waits for the third launcher
        with pytest.raises(
            PeerLost, match=r"host b \(--node-rank 1, rank 1\) was interrupted .*; no worker was started"
        ):
            hub.wait_for_start()


def test_an_ended_worker_is_reported_unless_it_had_met_the_others(launchers: Launchers) -> None:
    with waiting(launchers.all[2].marks.path, 0, Mark.WAITS_FOR_ALL, then=Mark.MET):
        pass
    launchers.all[2].note_ended(2, 0, "exit code 0")
    launchers.all[2].note_ended(2, 1, "exit code 1")  # because it has lost another worker
    with waiting(launchers.all[0].marks.path, 0, Mark.WAITS_FOR_ALL):
        launchers.all[1].note_ended(1, 0, "exit code 0")
        causes = {launchers.wait_for_cause(node_rank) for node_rank in range(3)}
    assert causes == {"rank 1 on host b ended with exit code 0 before the workers had met, and others wait for it"}


@pytest.mark.parametrize(("code", "how"), [(-9, "was killed by SIGKILL"), (3, "failed with exit code 3")])
def test_a_failed_worker_is_reported(launchers: Launchers, code: int, how: str) -> None:
    with waiting(launchers.all[1].marks.path, 0, Mark.WAITS_FOR_ALL, then=Mark.MET if code < 0 else Mark.NONE):
        pass
    launchers.all[1].note_ended(1, code, how.removeprefix("was ").removeprefix("failed with "))
    assert launchers.wait_for_cause(0) == f"rank 1 on host b {how} before the workers had met"


@pytest.mark.parametrize("number", [b"\x00", b"\x01", b"\x07", b"\xff", b"\xa1\xff", b"\x91" * 60_000])
def test_a_launcher_with_an_unexpected_number_is_refused(launchers: Launchers, number: bytes) -> None:
    """The first host's number, a connected host's, one that no host has, and bytes that are not a number."""
    with socket.create_connection(parse_address(launchers.address), timeout=HANG_S) as sock:
        shake_hands(sock, Role.DIALER, TOKEN)
        sock.sendall(len(number).to_bytes(4, "little") + number)
        with suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    launchers.all[0].post(lambda watch: watch.note_met())
    for node_rank in range(3):
        launchers.wait_for_end(node_rank)
        assert launchers.all[node_rank].cause == ""
