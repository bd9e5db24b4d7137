"""From a worker to its launcher: pulses once per second, and nothing that could hold up the training."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable

import pytest

from undertow.live import pulse
from undertow.live.mailbox import Mailbox
from undertow.live.pulse import EVERY_S, Pulse, State
from undertow.live.sender import Letterbox, Sender
from undertow.trace import notes
from undertow.trace.recorder import Recorder


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Posted:
    """A letterbox that keeps what is put in."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.is_closed = False

    def send(self, body: bytes) -> None:
        self.bodies.append(body)

    def close(self) -> None:
        self.is_closed = True


class Carrier:
    def __init__(self, size: int) -> None:
        self.size = size
        self.bodies: list[bytes] = []
        self.hear: Callable[[bytes], None] | None = None

    def send_pulse(self, body: bytes) -> None:
        self.bodies.append(body)

    def hear_pulses(self, hear: Callable[[bytes], None]) -> None:
        self.hear = hear


class Desk:
    """A sender with everything around it."""

    def __init__(self, *, rank: int = 1, is_beside_first: bool = False) -> None:
        self.clock, self.posted, self.recorder = Clock(), Posted(), Recorder()
        self.sender = Sender(
            self.recorder,
            self.posted,  # type: ignore[arg-type]
            rank=rank,
            is_beside_first=is_beside_first,
            clock=self.clock,
        )


def test_a_pulse_leaves_once_per_second() -> None:
    desk = Desk()
    for _ in range(9):
        desk.sender.take([])
        desk.clock.now += EVERY_S / 4
    assert [pulse.decode(body).sequence for body in desk.posted.bodies] == [1, 2, 3]


def test_what_the_training_stands_still_for_is_in_it() -> None:
    desk = Desk()
    desk.sender.take([notes.PassBegan(1000.0, 0, 1), notes.PassEnded(1000.0, 0, 1)])
    desk.recorder.standstill = "conv1.weight", 1000.5
    desk.clock.now += EVERY_S
    desk.sender.take([])
    last = pulse.decode(desk.posted.bodies[-1])
    assert (last.state, last.stands_for, last.stands_s, last.steps) == (State.WAITING, "conv1.weight", 0.5, 1)


def test_other_hosts_send_it_to_rank_0_as_well_through_the_largest_group() -> None:
    desk, small, large = Desk(), Carrier(2), Carrier(4)
    for carrier in (small, large, Carrier(3)):
        desk.sender.travel_with(carrier)
    desk.sender.take([])
    assert (small.bodies, large.bodies) == ([], desk.posted.bodies)


def test_beside_rank_0_the_launcher_is_the_same() -> None:
    desk, carrier = Desk(is_beside_first=True), Carrier(4)
    desk.sender.travel_with(carrier)
    desk.sender.take([])
    assert len(desk.posted.bodies) == 1
    assert carrier.bodies == []


def test_what_others_send_is_handed_on_as_it_is() -> None:
    desk, carrier = Desk(rank=0, is_beside_first=True), Carrier(4)
    desk.sender.travel_with(carrier)
    assert carrier.hear is not None
    carrier.hear(b"of rank 3")
    assert desk.posted.bodies == [b"of rank 3"]


def test_who_leaves_the_group_says_so_while_it_can_and_not_afterwards() -> None:
    desk, carrier = Desk(), Carrier(4)
    desk.sender.travel_with(carrier)
    desk.sender.part()
    assert pulse.decode(carrier.bodies[-1]).state is State.ENDED
    desk.clock.now += EVERY_S
    desk.sender.take([])
    desk.sender.close()
    assert len(carrier.bodies) == 1
    assert pulse.decode(desk.posted.bodies[-1]).state is State.ENDED
    assert desk.posted.is_closed


def test_a_launcher_that_is_gone_or_full_holds_nobody_up() -> None:
    heard: list[Pulse] = []
    mailbox = Mailbox(heard.append)
    mailbox.open()  # not started: nobody reads
    letterbox = Letterbox(str(mailbox.path))
    for _ in range(10_000):
        letterbox.send(bytes(1000))
    letterbox.send(bytes(10_000_000))  # larger than any datagram may be
    mailbox.close()
    letterbox.send(b"too late")
    letterbox.close()


def test_the_mailbox_takes_pulses_and_drops_the_rest() -> None:
    heard: list[Pulse] = []
    mailbox = Mailbox(heard.append)
    mailbox.start()
    letterbox = Letterbox(str(mailbox.path))
    mine = Pulse(rank=1, host="a", sequence=5, uptime_s=1.0, state=State.COMPUTING)
    for body in (b"\xc1", b"hello", pulse.encode(mine)[:-1], pulse.encode(mine)):
        letterbox.send(body)
    mailbox.close()
    mailbox.close()
    letterbox.close()
    assert heard == [mine]
    assert not mailbox.path.parent.exists()


def test_no_other_user_can_reach_the_mailbox() -> None:
    mailbox = Mailbox(lambda pulse: None)
    mailbox.open()
    try:
        folder = mailbox.path.parent.lstat()
        assert stat.S_IMODE(folder.st_mode) == 0o700
        assert folder.st_uid == os.getuid()
        assert len(os.fsencode(mailbox.path)) < 100
    finally:
        mailbox.close()


def test_a_long_tmpdir_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    deep = tmp_path_factory.mktemp("x" * 100)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))  # what TMPDIR becomes
    mailbox = Mailbox(lambda pulse: None)
    mailbox.open()
    mailbox.close()
    with pytest.raises(OSError, match="too long"), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(deep / ("y" * 30)))
