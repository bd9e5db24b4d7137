"""The arbiter survives any message, serves only its own user, and passes turns on in time."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.arbiters import (
    Caller,
    Puppet,
    arbiter_at,
    ends,
    eventually,
    hello_of,
    in_thread,
    states_at,
    status_at,
    turn_at,
    two_jobs_at,
)
from undertow.crossover import arbiter as arbiter_module
from undertow.crossover import messages
from undertow.crossover.arbiter import MOST_CONNECTIONS, Arbiter
from undertow.crossover.client import TurnClient
from undertow.crossover.messages import Ask, EndStep, Give, Grant, Notice, Query, Refusal, Status, Welcome
from undertow.crossover.socket_path import LONGEST_PATH, find_socket, prepare_folder
from undertow.crossover.turn_state import TurnMode
from undertow.errors import ConfigError

NOBODY = 65534


def take_turns(first: TurnClient, second: TurnClient) -> None:
    """Check that two jobs take turns undisturbed: each waits for the other."""
    for one, other in ((first, second), (second, first)):
        assert one.state.mode is other.state.mode is TurnMode.SHARED
        one.take()
        taking = in_thread(other.take)
        one.give()
        assert ends(taking)
        other.end_step()


# Connections that must not disturb others

HELLO = messages.encode(hello_of("x"))


def line(**fields: object) -> bytes:
    return messages.encode(hello_of("x")) + messages.msgspec.json.encode(fields) + b"\n"


NONSENSE = {
    "nothing like JSON": b"GET / HTTP/1.1\r\n\r\n",
    "bytes": bytes(range(256)) + b"\n",
    "an empty line": b"\n",
    "another JSON": b"[1, 2]\n",
    "an unknown kind": b'{"type":"Attack"}\n',
    "a kind for workers": messages.encode(Welcome(1.0)),
    "a question before hello": messages.encode(Ask()),
    "a gift before hello": messages.encode(Give()),
    "a step before hello": messages.encode(EndStep(1, 1, 0.0, 0.0)),
    "two hellos": HELLO + HELLO,
    "an endless line": b"x" * (2 << 20),
    "no number": HELLO + b'{"type":"Lift","to_s":NaN}\n',
    "a number out of range": HELLO + b'{"type":"Lift","to_s":1e999}\n',
    "a long number": HELLO + b'{"type":"Lift","to_s":' + b"9" * 1000 + b"}\n",
    "a debt": line(type="Lift", to_s=-1.0),
    "a great lift": line(type="Lift", to_s=1e308),
    "a great place": line(type="Ask", virtual_s=1e308, cost_s=0.0),
    "a negative place": line(type="Ask", virtual_s=-1e308, cost_s=0.0),
    "a great cost": line(type="Ask", virtual_s=0.0, cost_s=1e308),
    "no steps": line(type="EndStep", step=1, steps=0, compute_s=0.0, network_s=0.0),
    "a great many steps": line(type="EndStep", step=1, steps=10**30, compute_s=0.0, network_s=0.0),
    "a great step": line(type="EndStep", step=10**30, steps=1, compute_s=0.0, network_s=0.0),
    "steps of ages": line(type="EndStep", step=1, steps=1, compute_s=1e308, network_s=0.0, is_alone=True),
    "steps before time": line(type="EndStep", step=1, steps=1, compute_s=-9.0, network_s=0.0, is_alone=True),
    "waits of ages": line(type="EndStep", step=1, steps=1, compute_s=0.0, network_s=1e308),
    "waits before time": line(type="EndStep", step=1, steps=1, compute_s=0.0, network_s=-9.0),
    "more memory than there is": HELLO.replace(b'"growth_bytes":0', b'"growth_bytes":' + b"9" * 400),
    "a negative memory": HELLO.replace(b'"free_bytes":0', b'"free_bytes":-1'),
    "a long name": messages.encode(messages.msgspec.structs.replace(hello_of("x"), name="x" * 5000)),
    "a long identity": messages.encode(hello_of("x" * 5000)),
    "a long device": messages.encode(hello_of("x", device="x" * 5000)),
}


@pytest.fixture(scope="module")
def bystanders() -> Iterator[tuple[Path, TurnClient, TurnClient]]:
    with tempfile.TemporaryDirectory(prefix="ut-") as folder:
        path = Path(folder) / "s"
        with arbiter_at(path), two_jobs_at(path) as (first, second):
            yield path, first, second


@pytest.mark.parametrize("said", NONSENSE.values(), ids=NONSENSE)
def test_a_connection_that_sends_nonsense_is_closed(
    bystanders: tuple[Path, TurnClient, TurnClient], said: bytes
) -> None:
    path, first, second = bystanders
    connections = first._connection, second._connection
    with Caller(path) as caller:
        with contextlib.suppress(ConnectionError):  # it may be disconnected in the middle of it
            caller.socket.sendall(said)
        caller.hear_end()
    eventually(lambda: sorted(states_at(path)) == ["a", "b"])
    take_turns(first, second)
    assert (first._connection, second._connection) == connections


@pytest.mark.parametrize("weight", [0.0, -1.0])
def test_an_impossible_weight_is_refused(bystanders: tuple[Path, TurnClient, TurnClient], weight: float) -> None:
    with Caller(bystanders[0]) as caller:
        caller.say(hello_of("x", weight=weight))
        assert "weight" in caller.hear_a(Refusal).reason


def test_an_unfinished_message_delays_no_one(bystanders: tuple[Path, TurnClient, TurnClient]) -> None:
    path, first, second = bystanders
    with Caller(path) as caller:
        caller.socket.sendall(HELLO[:20])
        take_turns(first, second)
        caller.socket.sendall(HELLO[20:] + messages.encode(Query())[:5])
        assert isinstance(caller.hear(), Welcome)
        take_turns(first, second)
        caller.socket.sendall(messages.encode(Query())[5:])
        assert caller.hear_a(Status).pid == os.getpid()


def test_a_connection_that_never_reads_is_closed(bystanders: tuple[Path, TurnClient, TurnClient]) -> None:
    path, first, second = bystanders
    with Caller(path) as caller:
        caller.say(hello_of("x"))
        flood = messages.encode(Query()) * 1000
        caller.socket.settimeout(0.05)  # what one says that does not listen is not read for ever
        assert eventually(lambda: is_cut_off(caller.socket, flood))
        take_turns(first, second)
    assert sorted(states_at(path)) == ["a", "b"]


def is_cut_off(connection: socket.socket, words: bytes) -> bool:
    try:
        connection.sendall(words)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return False


def test_messages_after_a_disconnection_are_ignored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbiter_module, "MOST_UNREAD_BYTES", -1)  # whoever is told anything does not listen
    arbiter = Arbiter(path)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        connection = arbiter_module.ArbiterConnection(1, theirs)
        arbiter._connections[1] = connection
        arbiter._selector.register(theirs, arbiter_module.selectors.EVENT_READ, connection)
        ours.sendall(messages.encode(Query()) + HELLO)
        arbiter._serve(connection, arbiter_module.selectors.EVENT_READ)
    assert not arbiter._state.devices
    arbiter.close()


def test_silent_connections_make_room_for_others(path: Path) -> None:
    with arbiter_at(path), two_jobs_at(path) as (first, second):
        callers = [Caller(path) for _ in range(MOST_CONNECTIONS + 88)]
        callers[0].hear_end()
        assert can_be_asked(path)
        take_turns(first, second)
        for caller in callers:
            caller.socket.close()
        eventually(lambda: can_be_asked(path))
        take_turns(first, second)


def can_be_asked(path: Path) -> bool:
    try:
        return status_at(path).pid == os.getpid()
    except ConnectionError:
        return False


# Handing on


def test_a_closed_connection_frees_the_turn_at_once(path: Path) -> None:
    with arbiter_at(path), turn_at(path, "a") as first, turn_at(path, "b") as second, Caller(path) as caller:
        caller.say(hello_of("c"), Ask())
        caller.hear_a(Grant)
        taking = [in_thread(first.take), in_thread(second.take)]
        eventually(lambda: list(states_at(path).values()) == ["waits for its turn", "waits for its turn", "computes"])
        caller.socket.close()
        eventually(lambda: not all(thread.is_alive() for thread in taking))
        first.give() if not taking[0].is_alive() else second.give()
        assert all(ends(thread) for thread in taking)


def test_a_holder_that_is_silent_for_longer_than_the_lease_loses_the_turn_and_is_named(path: Path) -> None:
    with arbiter_at(path, lease_s=0.2), turn_at(path, "b") as second, Caller(path) as caller:
        caller.say(hello_of("a", rank=3), Ask())
        caller.hear_a(Grant)
        second.take()
        words = caller.hear_a(Notice).text
        assert words.startswith("rank 3 of a.py (pid 4) has computed on cpu for 0.2")
        assert " s without giving the turn back, or is stopped" in words
        assert status_at(path).notices == [words]
        assert {job.job: job.overdue for job in status_at(path).devices[0].jobs} == {"a": 1, "b": 0}
        caller.say(Give(), Ask())  # it wakes up, and is one of many again
        second.end_step()
        caller.hear_a(Grant)


def test_a_long_turn_without_other_waiting_jobs_is_no_lapse(path: Path) -> None:
    with arbiter_at(path, lease_s=0.01), two_jobs_at(path) as (first, second):
        first.take()
        eventually(lambda: status_at(path).devices[0].held_s > 0.05)
        assert states_at(path)["a"] == "computes"
        assert not status_at(path).notices
        second.take()
        assert len(status_at(path).notices) == 1


def test_devices_are_independent(path: Path) -> None:
    with arbiter_at(path), turn_at(path, "a", device="cuda 0") as first, turn_at(path, "b", device="cuda 1") as second:
        first.take()
        second.take()
        assert first.state.mode is second.state.mode is TurnMode.ALONE
        assert [device.device for device in status_at(path).devices] == ["cuda 0", "cuda 1"]


# Who may talk to it, and where it is


def test_only_its_user_can_reach_the_socket(path: Path) -> None:
    home = path.parent / "made"
    with arbiter_at(home / "s"):
        assert stat.S_IMODE((home / "s").stat().st_mode) == 0o600
        assert stat.S_IMODE(home.stat().st_mode) == 0o700


CONNECTS = """
import os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(20)
    try:
        connection.connect(sys.argv[1])
        connection.sendall(b'{"type":"Query"}\\n')
        print("hears", connection.recv(100))
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("is_open", [False, True])
def test_another_user_cannot_connect(path: Path, is_open: bool) -> None:
    with arbiter_at(path):
        if is_open:  # as if somebody had opened it by mistake: the kernel still says who calls
            path.chmod(0o777)
            path.parent.chmod(0o755)
        command = [sys.executable, "-c", CONNECTS, path, str(NOBODY)]
        told = subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
        assert told in (("hears b''", "BrokenPipeError", "ConnectionResetError") if is_open else ("PermissionError",))
        assert can_be_asked(path)


def test_a_peer_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with arbiter_at(path):
        with monkeypatch.context() as patch:
            user = os.getuid()
            patch.setattr(arbiter_module.os, "getuid", lambda: user + 1)
            with Caller(path) as caller:
                caller.hear_end()
        assert can_be_asked(path)


def test_a_second_arbiter_at_one_socket_is_refused(path: Path) -> None:
    with arbiter_at(path), two_jobs_at(path) as (first, second):
        with pytest.raises(ConfigError, match=f"an arbiter is already up at {path}: see undertow share status"):
            Arbiter(path)
        take_turns(first, second)


@contextlib.contextmanager
def process_at(path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "undertow.crossover.arbiter", path, "30"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: path.exists() and status_pid(path) == process.pid)
            yield process
        finally:
            process.kill()


def test_connections_are_refused_when_no_descriptor_is_left(path: Path) -> None:
    with process_at(path) as arbiter, two_jobs_at(path) as (first, second):
        resource.prlimit(arbiter.pid, resource.RLIMIT_NOFILE, (64, 64))
        callers = [Caller(path) for _ in range(100)]
        callers[-1].hear_end()
        take_turns(first, second)
        for caller in callers:
            caller.socket.close()
        eventually(lambda: status_pid(path) == arbiter.pid)


def test_the_socket_of_a_killed_arbiter_is_taken_over(path: Path) -> None:
    with process_at(path):
        pass  # which kills it
    assert path.exists()
    with arbiter_at(path):
        assert can_be_asked(path)
    assert not path.exists()


def status_pid(path: Path) -> int:
    try:
        return status_at(path).pid
    except ConnectionError:
        return 0


def test_a_terminated_arbiter_removes_its_socket(path: Path) -> None:
    with process_at(path) as arbiter:
        arbiter.terminate()
        words = arbiter.communicate(timeout=30)[1]
    assert arbiter.returncode == 0
    assert f"the arbiter is up, process {arbiter.pid}" in words
    assert "Traceback" not in words
    assert not path.exists()


def make_file(folder: Path) -> None:
    folder.write_text("")


def make_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def make_dangling_link(folder: Path) -> None:
    folder.symlink_to(folder.parent / "nowhere")


def make_for_group(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o770)


def make_for_others(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o1703)


@pytest.mark.parametrize("make", [make_file, make_link, make_dangling_link, make_for_group, make_for_others])
def test_a_folder_that_others_could_change_is_refused(path: Path, make: object) -> None:
    folder = path.parent / "folder"
    make(folder)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=r"it is not a folder of this user alone.*UNDERTOW_SHARE_SOCKET"):
        Arbiter(folder / "s")


def test_a_folder_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(ConfigError, match="is not a folder of this user alone"):
        prepare_folder(path)


def test_a_folder_that_cannot_be_created_is_refused(path: Path) -> None:
    (path.parent / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be created.*UNDERTOW_SHARE_SOCKET"):
        Arbiter(path.parent / "file" / "folder" / "s")


def test_the_default_socket_differs_between_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert find_socket() == Path(f"/tmp/undertow-{os.getuid()}/share.sock")
    assert find_socket("/a/b") == Path("/a/b")


def test_a_path_that_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"too long for a socket: choose one of at most {LONGEST_PATH} bytes"):
        find_socket("/" + "x" * LONGEST_PATH)


def test_a_file_in_place_of_the_socket_does_not_stop_a_new_arbiter(path: Path) -> None:
    with Puppet(path):
        pass  # its socket is left behind
    with arbiter_at(path):
        assert can_be_asked(path)
