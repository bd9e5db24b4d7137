"""A group and its workers: what it hears, what it says of one that ends or stays silent, and that nobody is left.

These workers are stand-ins that speak the protocol without importing torch; test_bench_workers.py has real ones.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import is_alive, wait_until
from undertow.errors import LabError
from undertow.launch.cleanup_guard import read_state
from undertow.tools.lab.bench import worker_group as group_module
from undertow.tools.lab.bench.messages import Assignment, Ready
from undertow.tools.lab.bench.worker_group import MOST_OUTPUT_LINES, WorkerGroup
from undertow.tools.lab.network import Host, Network, open_loopback
from undertow.tools.lab.systems import find_system

PYTHON = sys.executable
STAND_IN = """\
#!{python}
import json, os, pathlib, signal, sys, time
folder = pathlib.Path({folder!r})
rank = int(os.environ["RANK"])

def mark(name, text=""):
    (folder / ("." + name)).write_text(str(text))
    (folder / ("." + name)).rename(folder / name)

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.005)

def tell(**message):
    sys.stdout.write(json.dumps(message) + "\\n")
    sys.stdout.flush()

def ready():
    tell(batch=7, gradient_bytes=4, compute_s=None)

def lap(digest=1):
    tell(ends_s=[1.0 + rank, 2.0 + rank], cpu_s=0.5, sent_bytes=None, digest=digest)

signal.signal(signal.SIGTERM, signal.SIG_IGN)
mark(f"pid{{rank}}", os.getpid())
assignment = json.loads(sys.stdin.readline())
"""


class Yard:
    """Where groups of stand-ins are started."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, network: Network) -> None:
        self.folder = folder
        self.network = network
        self._monkeypatch = monkeypatch

    def start(
        self,
        body: str,
        *,
        system: str = "ddp",
        environ: Mapping[str, str] | None = None,
        by_host: Sequence[Mapping[str, str]] = (),
    ) -> WorkerGroup:
        script = self.folder / "worker"
        script.write_text(STAND_IN.format(python=PYTHON, folder=str(self.folder)) + textwrap.dedent(body))
        script.chmod(0o755)
        self._monkeypatch.setattr(group_module.sys, "executable", str(script))
        assignment = Assignment(model="resnet50", system=system, scale=10.0, batch=None)
        environ = os.environ if environ is None else environ
        return WorkerGroup(self.network, find_system(system), assignment, environ, by_host=by_host)

    def mark(self, name: str) -> None:
        (self.folder / name).touch()

    def wait_for(self, *names: str) -> None:
        wait_until(lambda: all((self.folder / name).exists() for name in names))

    def living(self) -> list[int]:
        pids = [int(file.read_text()) for file in self.folder.glob("pid*")]
        assert pids
        return [pid for pid in pids if is_alive(pid) and str(self.folder) in _read_command(pid)]

    def states(self) -> list[str]:
        return [read_state(int(file.read_text())) for file in self.folder.glob("pid*")]


def _read_command(pid: int) -> str:
    with suppress(OSError):  # it has just ended
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    with open_loopback(2) as network:
        yard = Yard(tmp_path, monkeypatch, network)
        yield yard
    for pid in yard.living():  # only if a test has failed
        os.kill(pid, signal.SIGKILL)


def failure(act: Callable[[], object]) -> list[str]:
    """The lines of the error that it ends with."""
    with pytest.raises(LabError) as error:
        act()
    return str(error.value).splitlines()


def test_answers_come_in_the_order_of_the_hosts(yard: Yard) -> None:
    group = yard.start(
        """
        ready()
        for line in sys.stdin:
            assert json.loads(line) == {"steps": 2}
            if rank == 0:
                wait_for("second")
            lap()
            mark("second" if rank else "first")
        """
    )
    with group:
        assert group.wait_until_ready() == Ready(batch=7, gradient_bytes=4, compute_s=None)
        laps = group.run(2, timeout_s=60)
        assert [lap.ends_s for lap in laps] == [[1.0, 2.0], [2.0, 3.0]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_the_middle_of_a_start_forgets_no_worker(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """It comes when the process is there, and before anybody has its number."""
    started = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self.pid)
            yard.wait_for("pid0")
            signal.raise_signal(number)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        monkeypatch.setattr(group_module.subprocess, "Popen", Interrupted)
        with pytest.raises(KeyboardInterrupt), yard.start("ready()\nsys.stdin.read()"):
            raise AssertionError("the interrupt is lost")
        assert signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, before)
    assert started
    assert [pid for pid in started if is_alive(pid)] == []


def test_several_laps_in_a_row(yard: Yard) -> None:
    with yard.start("ready()\nfor line in sys.stdin: lap()") as group:
        group.wait_until_ready()
        assert [len(group.run(2, timeout_s=60)) for _ in range(5)] == [2] * 5


def test_workers_are_told_their_place_and_their_system(yard: Yard) -> None:
    group = yard.start(
        "mark(f'told{rank}', json.dumps({'assignment': assignment, **os.environ}))\nready()\nsys.stdin.read()",
        system="undertow-no-wait-free",
        environ={**os.environ, "HOME": "/home/me", "UNDERTOW_WAIT_FREE": "on", "UNDERTOW_SLICE": "2048", "RANK": "9"},
    )
    with group:
        group.wait_until_ready()
    for rank in range(2):
        told = json.loads((yard.folder / f"told{rank}").read_text())
        assert told["assignment"] == {
            "model": "resnet50",
            "system": "undertow-no-wait-free",
            "scale": 10.0,
            "slowdown": 1.0,
            "batch": None,
            "devices": None,
        }
        assert (told["RANK"], told["WORLD_SIZE"], told["HOME"]) == (str(rank), "2", "/home/me")
        assert (told["UNDERTOW_WAIT_FREE"], told["UNDERTOW_SLICE"]) == ("off", "")  # "": undertow chooses
        assert told["UNDERTOW_LARGEST_SLICE"] == str(round((4 << 20) / 10) // 16 * 16)


def test_two_groups_train_at_the_same_time(yard: Yard) -> None:
    """Each of them waits for the other before it answers."""
    body = """
        ready()
        for line in sys.stdin:
            mark(f"{os.environ['SHIFT']}-{rank}")
            wait_for(f"{'late' if os.environ['SHIFT'] == 'early' else 'early'}-{rank}")
            lap(digest=len(os.environ["SHIFT"]))
        """
    early, late = (yard.start(body, environ={**os.environ, "SHIFT": shift}) for shift in ("early", "late"))
    with early, late:
        for group in (early, late):
            group.wait_until_ready()
        for group in (early, late):
            group.begin_lap(2)
        assert [lap.digest for group in (late, early) for lap in group.end_lap(timeout_s=60)] == [4, 4, 5, 5]


def test_a_host_may_have_variables_of_its_own(yard: Yard) -> None:
    own = [{"DOOR": "red", "UNDERTOW_SLICE": "2048"}, {"DOOR": "blue"}]
    body = "mark(f'door{rank}', os.environ['DOOR'] + os.environ['UNDERTOW_SLICE'])\nready()\nsys.stdin.read()"
    with yard.start(body, system="undertow", by_host=own) as group:
        group.wait_until_ready()
    assert [(yard.folder / f"door{rank}").read_text() for rank in range(2)] == ["red2048", "blue"]


def test_an_answer_may_come_in_pieces(yard: Yard) -> None:
    group = yard.start(
        """
        text = json.dumps({"batch": 7, "gradient_bytes": 4, "compute_s": None}) + "\\n"
        for letter in text:
            os.write(1, letter.encode())
            time.sleep(0.001)
        sys.stdin.read()
        """
    )
    with group:
        assert group.wait_until_ready().batch == 7


def test_a_long_answer_is_heard_whole(yard: Yard) -> None:
    with yard.start(
        "ready()\nsys.stdin.readline()\ntell(ends_s=[0.5] * 50000, cpu_s=0, sent_bytes=1, digest=1)"
    ) as group:
        group.wait_until_ready()
        assert [len(lap.ends_s) for lap in group.run(50_000, timeout_s=60)] == [50_000] * 2


def test_a_worker_that_ends_before_it_is_ready_is_named_with_its_last_words(yard: Yard) -> None:
    group = yard.start(
        """
        if rank == 1:
            wait_for("pid0")
            sys.exit("no such thing as torch")
        time.sleep(600)
        """
    )
    with group:
        lines = failure(group.wait_until_ready)
    assert lines == ["ddp with resnet50: the worker on host1 ended with code 1", "no such thing as torch"]
    assert yard.living() == []


def test_a_worker_that_ends_in_mid_lap_is_named_with_its_last_words(yard: Yard) -> None:
    group = yard.start(
        """
        ready()
        sys.stdin.readline()
        if rank == 0:
            sys.stdout.write('{"ends_s": [')
            sys.stdout.flush()
            raise ArithmeticError("gradient of nothing")
        time.sleep(600)
        """
    )
    with group:
        group.wait_until_ready()
        lines = failure(lambda: group.run(2, timeout_s=60))
    assert lines[0] == "ddp with resnet50: the worker on host0 ended with code 1"
    assert lines[-1] == "ArithmeticError: gradient of nothing"
    assert yard.living() == []


def test_a_worker_that_is_gone_before_it_is_told_is_an_error_and_not_a_broken_pipe(yard: Yard) -> None:
    group = yard.start(
        """
        ready()
        if rank == 1:
            wait_for("go")
            os.kill(os.getpid(), signal.SIGKILL)
        sys.stdin.read()
        """
    )
    with group:
        group.wait_until_ready()
        pid = int((yard.folder / "pid1").read_text())
        yard.mark("go")
        wait_until(lambda: not is_alive(pid))
        lines = failure(lambda: group.run(2, timeout_s=60))
    assert lines[0] == "ddp with resnet50: the worker on host1 was killed by SIGKILL"


def test_last_words_are_the_last_and_whatever_they_are(yard: Yard) -> None:
    group = yard.start(
        """
        for number in range(1000):
            print("line", number, file=sys.stderr)
        sys.stderr.flush()
        os.write(2, b"caf\\xe9 \\xff[/red]\\n")
        """
    )
    with group:
        lines = failure(group.wait_until_ready)
    assert len(lines) == 1 + MOST_OUTPUT_LINES
    assert lines[1] == f"line {1000 - MOST_OUTPUT_LINES + 1}"
    assert lines[-1].startswith("caf")
    assert lines[-1].endswith("[/red]")


def test_silence_is_reported_with_the_hosts_that_are_silent(yard: Yard) -> None:
    group = yard.start(
        """
        ready()
        if rank == 0:
            wait_for("go")
            lap()
            mark("answered")
        time.sleep(600)
        """
    )
    with group:
        group.wait_until_ready()
        yard.mark("go")
        yard.wait_for("answered")
        assert failure(lambda: group.run(2, timeout_s=0.2)) == ["ddp with resnet50: no answer from host1 in 0 s"]
    assert yard.living() == []


def test_silence_at_the_start_is_reported_too(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "START_TIMEOUT_S", 0.05)
    with yard.start("time.sleep(600)") as group:
        yard.wait_for("pid0", "pid1")
        assert failure(group.wait_until_ready) == ["ddp with resnet50: no answer from host0, host1 in 0 s"]
    assert yard.living() == []


def test_replicas_that_differ_end_the_group(yard: Yard) -> None:
    with yard.start("ready()\nfor line in sys.stdin: lap(digest=rank)") as group:
        group.wait_until_ready()
        [line] = failure(lambda: group.run(2, timeout_s=60))
    assert line.startswith("ddp with resnet50: the replicas differ after 2 steps")


def test_without_a_system_replicas_may_differ(yard: Yard) -> None:
    with yard.start("ready()\nfor line in sys.stdin: lap(digest=rank)", system="local") as group:
        group.wait_until_ready()
        assert [lap.digest for lap in group.run(2, timeout_s=60)] == [0, 1]


def test_at_the_end_workers_may_say_good_bye(yard: Yard) -> None:
    with yard.start("ready()\nsys.stdin.read()\ntime.sleep(0.1)\nmark(f'left{rank}')") as group:
        group.wait_until_ready()
    assert (yard.folder / "left0").exists()
    assert (yard.folder / "left1").exists()


def test_a_worker_that_does_not_leave_is_made_to(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "EXIT_TIMEOUT_S", 0.05)
    with yard.start("ready()\ntime.sleep(600)") as group:
        group.wait_until_ready()
    assert yard.living() == []


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_after_an_error_nobody_is_left(yard: Yard, error: type[BaseException]) -> None:
    def fail() -> None:
        with yard.start("ready()\ntime.sleep(600)") as group:
            group.wait_until_ready()
            assert len(yard.living()) == 2
            raise error

    with pytest.raises(error):
        fail()
    assert yard.living() == []


def test_a_group_that_cannot_start_on_all_hosts_leaves_nobody(yard: Yard) -> None:
    class Refusing(Host):
        @contextmanager
        def entered(self) -> Iterator[None]:
            yard.wait_for("pid0")
            raise OSError("no such namespace")
            yield

    last = yard.network.hosts[-1]
    yard.network.hosts = [yard.network.hosts[0], Refusing(last.index, last.name, last.address)]  # type: ignore[misc]
    with pytest.raises(OSError, match="no such namespace"):
        yard.start("time.sleep(600)").__enter__()
    assert yard.living() == []


def test_a_line_that_is_no_message_is_an_error_with_what_was_said(yard: Yard) -> None:
    with yard.start("print('welcome to this machine', flush=True)\ntime.sleep(600)") as group:
        lines = failure(group.wait_until_ready)
    assert lines[0].endswith("sent 'welcome to this machine' instead of a lap")


def test_a_restless_system_is_stopped_between_its_turns(yard: Yard) -> None:
    group = yard.start("ready()\nfor line in sys.stdin:\n    lap()", system="horovod")
    with group:
        group.wait_until_ready()
        for _ in range(2):
            wait_until(lambda: yard.states() == ["T", "T"])
            group.run(2, timeout_s=60)
    assert yard.living() == []


def test_a_quiet_system_is_left_alone(yard: Yard) -> None:
    with yard.start("ready()\nfor line in sys.stdin:\n    lap()") as group:
        group.wait_until_ready()
        group.run(2, timeout_s=60)
        assert "T" not in yard.states()
