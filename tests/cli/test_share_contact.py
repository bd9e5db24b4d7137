"""Contact with the arbiter's socket: nothing there, a silent process, another program."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import HANG_S
from tests.support.shared_jobs import run_arbiter
from undertow.crossover.contact import ask_status, stop
from undertow.errors import ConfigError, UndertowError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


@pytest.fixture
def listener(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(HANG_S)
        yield listener


def answer(listener: socket.socket, data: bytes) -> threading.Thread:
    def run() -> None:
        for _ in range(1 if data else 2):  # a client without an answer connects again
            with listener.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(data)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_without_a_socket_there_is_no_arbiter(path: Path) -> None:
    assert ask_status(path) is None
    assert stop(path) is None
    assert ask_status(path.parent / "no" / "folder.sock") is None


def test_a_stale_socket_is_no_arbiter(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    assert ask_status(path) is None


def test_one_that_does_not_answer_is_named_with_its_pid(path: Path, listener: socket.socket) -> None:
    with pytest.raises(
        UndertowError, match=f"pid {os.getpid()}.*has not answered for 0.05 s.*kill -CONT {os.getpid()}"
    ):
        ask_status(path, timeout_s=0.05)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "not an arbiter"),
        (b"", "has closed the connection"),
        (b'{"type":"Welcome","lease_s":1}\n', "answered with a Welcome"),
    ],
)
def test_another_program_at_the_socket_is_reported(
    path: Path, listener: socket.socket, said: bytes, words: str
) -> None:
    thread = answer(listener, said)
    with pytest.raises(UndertowError, match=words):
        ask_status(path)
    thread.join()


# An arbiter that answers, but ignores the request to stop.
STUBBORN = """
import socket, sys
from undertow.crossover import messages
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("ready", flush=True)
    connection, _ = listener.accept()
    connection.recv(100)
    connection.sendall(messages.encode(messages.Status(pid=1, lease_s=1, up_s=1, devices=[], notices=[])))
    sys.stdin.read()
"""


def test_an_arbiter_that_does_not_stop_is_named(path: Path) -> None:
    command = [sys.executable, "-c", STUBBORN, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(UndertowError, match=f"asked to stop and still runs: end it with kill -9 {process.pid}"):
            stop(path, timeout_s=1.0)


def test_a_folder_that_others_can_change_is_not_trusted(path: Path, listener: socket.socket) -> None:
    path.parent.chmod(0o770)
    with pytest.raises(ConfigError, match="not a folder of this user alone"):
        ask_status(path, timeout_s=0.05)


def test_an_arbiter_reports_its_status_and_its_end_is_no_error(path: Path) -> None:
    with run_arbiter(path, lease_s=3.0) as arbiter:
        status = ask_status(path)
        assert status is not None
        assert (status.pid, status.lease_s) == (os.getpid(), 3.0)
        arbiter.stop()
        assert ask_status(path) is None  # this connection makes it end without an answer
