"""Status reports from a worker to its launcher: once per second, and without delaying training."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable

import pytest

from undertow.observe.live.live_view import StatusReceiver
from undertow.observe.meter import status_report
from undertow.observe.meter.status_report import EVERY_S, Activity, StatusReport
from undertow.observe.meter.status_sender import StatusSender, StatusSocket
from undertow.tracing import events
from undertow.tracing.recorder import Recorder


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Posted:
    """A socket that keeps what is sent."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.is_closed = False

    def send(self, body: bytes) -> None:
        self.bodies.append(body)

    def close(self) -> None:
        self.is_closed = True


class StatusGroup:
    def __init__(self, size: int) -> None:
        self.size = size
        self.bodies: list[bytes] = []
        self.hear: Callable[[bytes], None] | None = None

    def send_to_first(self, body: bytes) -> None:
        self.bodies.append(body)

    def on_side_message(self, hear: Callable[[bytes], None]) -> None:
        self.hear = hear


class Desk:
    """A sender with its clock, socket and recorder."""

    def __init__(self, *, rank: int = 1, is_beside_first: bool = False) -> None:
        self.clock, self.posted, self.recorder = Clock(), Posted(), Recorder()
        self.sender = StatusSender(
            self.recorder,
            self.posted,  # type: ignore[arg-type]
            rank=rank,
            is_beside_first=is_beside_first,
            clock=self.clock,
        )


def test_a_report_is_sent_once_per_second() -> None:
    desk = Desk()
    for _ in range(9):
        desk.sender.take([])
        desk.clock.now += EVERY_S / 4
    assert [status_report.decode(body).sequence for body in desk.posted.bodies] == [1, 2, 3]


def test_a_report_has_the_current_wait() -> None:
    desk = Desk()
    desk.sender.take([events.PassBegan(1000.0, 0, 1), events.PassEnded(1000.0, 0, 1)])
    desk.recorder.standstill = "conv1.weight", 1000.5
    desk.clock.now += EVERY_S
    desk.sender.take([])
    last = status_report.decode(desk.posted.bodies[-1])
    assert (last.state, last.stands_for, last.stands_s, last.steps) == (Activity.WAITING, "conv1.weight", 0.5, 1)


def test_other_hosts_also_send_reports_to_rank_0_through_the_largest_group() -> None:
    desk, small, large = Desk(), StatusGroup(2), StatusGroup(4)
    for group in (small, large, StatusGroup(3)):
        desk.sender.use_group(group)
    desk.sender.take([])
    assert (small.bodies, large.bodies) == ([], desk.posted.bodies)


def test_ranks_beside_rank_0_send_only_to_their_launcher() -> None:
    desk, group = Desk(is_beside_first=True), StatusGroup(4)
    desk.sender.use_group(group)
    desk.sender.take([])
    assert len(desk.posted.bodies) == 1
    assert group.bodies == []


def test_reports_of_other_ranks_are_forwarded_unchanged() -> None:
    desk, group = Desk(rank=0, is_beside_first=True), StatusGroup(4)
    desk.sender.use_group(group)
    assert group.hear is not None
    group.hear(b"of rank 3")
    assert desk.posted.bodies == [b"of rank 3"]


def test_a_worker_reports_its_end_before_it_leaves_the_group() -> None:
    desk, group = Desk(), StatusGroup(4)
    desk.sender.use_group(group)
    desk.sender.announce_end()
    assert status_report.decode(group.bodies[-1]).state is Activity.ENDED
    desk.clock.now += EVERY_S
    desk.sender.take([])
    desk.sender.close()
    assert len(group.bodies) == 1
    assert status_report.decode(desk.posted.bodies[-1]).state is Activity.ENDED
    assert desk.posted.is_closed


def test_a_launcher_that_has_exited_or_is_busy_delays_no_worker() -> None:
    heard: list[StatusReport] = []
    receiver = StatusReceiver(heard.append)
    receiver.open()  # not started, so nothing is read
    socket = StatusSocket(str(receiver.path))
    for _ in range(10_000):
        socket.send(bytes(1000))
    socket.send(bytes(10_000_000))  # larger than any datagram may be
    receiver.close()
    socket.send(b"too late")
    socket.close()


def test_the_receiver_takes_reports_and_drops_other_datagrams() -> None:
    heard: list[StatusReport] = []
    receiver = StatusReceiver(heard.append)
    receiver.start()
    socket = StatusSocket(str(receiver.path))
    mine = StatusReport(rank=1, host="a", sequence=5, uptime_s=1.0, state=Activity.COMPUTING)
    for body in (b"\xc1", b"hello", status_report.encode(mine)[:-1], status_report.encode(mine)):
        socket.send(body)
    receiver.close()
    receiver.close()
    socket.close()
    assert heard == [mine]
    assert not receiver.path.parent.exists()


def test_no_other_user_can_reach_the_receiver() -> None:
    receiver = StatusReceiver(lambda report: None)
    receiver.open()
    try:
        folder = receiver.path.parent.lstat()
        assert stat.S_IMODE(folder.st_mode) == 0o700
        assert folder.st_uid == os.getuid()
        assert len(os.fsencode(receiver.path)) < 100
    finally:
        receiver.close()


def test_a_long_tmpdir_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    deep = tmp_path_factory.mktemp("x" * 100)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))  # what TMPDIR becomes
    receiver = StatusReceiver(lambda report: None)
    receiver.open()
    receiver.close()
    with pytest.raises(OSError, match="too long"), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(deep / ("y" * 30)))
