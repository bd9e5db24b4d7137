"""`horovod.run` without its workers: arguments, results and failures."""

from __future__ import annotations

import inspect
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from undertow import hidden
from undertow.errors import ConfigError, PeerLost
from undertow.horovod.errors import RunFailed
from undertow.horovod.runner import function, run
from undertow.horovod.runner.exchange_folder import ExchangeFolder
from undertow.horovod.runner.function import count_workers
from undertow.launch.cleanup_guard import CleanupGuard


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"hostfile": "hosts"}, "undertow run --nnodes"),
        ({"min_num_proc": 2}, "elastic training is not supported yet"),
        ({"host_discovery_script": "./hosts.sh"}, "elastic training is not supported yet"),
        ({"use_mpi": True}, "MPI is not used"),
        ({"ssh_port": 22}, "this host only"),
        ({"output_filename": "out"}, "redirect"),
    ],
)
def test_unsupported_options_are_refused_with_advice(options: dict[str, Any], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        run(print, **options)


def test_options_without_effect_are_accepted_and_unknown_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "_launch", lambda guard, command: 0)
    monkeypatch.setattr(function, "_collect", lambda exchange, size, code: [size])
    unused = {"use_gloo": True, "verbose": 2, "disable_cache": True, "use_mpi": None, "network_interfaces": ["eth0"]}
    assert run(print, **unused) == [1]
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_procs'"):
        run(print, num_procs=3)


def test_arguments_are_in_horovods_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "_launch", lambda guard, command: 0)
    monkeypatch.setattr(function, "_collect", lambda exchange, size, code: [size])
    assert run(print, (), {}, 3, None, None, None, None, None, "localhost:3") == [3]
    with pytest.raises(ConfigError, match="min_num_proc=2"):
        run(print, (), {}, 3, 2)
    words = "func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile "
    words += "host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose "
    words += "use_gloo use_mpi mpi_args network_interface network_interfaces executable np min_np max_np"
    assert list(inspect.signature(run).parameters) == words.split()


def test_a_worker_cannot_start_workers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"already one of 2 workers .*: start the script once"):
        run(print)
    hidden.hide()  # as in a script that looks like a single-process script
    try:
        with pytest.raises(ConfigError, match="already one of 2 workers"):
            run(print)
    finally:
        hidden.show()


@pytest.mark.parametrize("executable", ["/nonexistent/python", __file__], ids=["absent", "no program"])
def test_a_program_that_cannot_be_started_is_named(executable: str) -> None:
    with pytest.raises(ConfigError, match=f"executable '{executable}' cannot be started: (No such|Permission)"):
        run(print, executable=executable)


def test_hosts_must_be_this_host() -> None:
    assert count_workers(3, None) == 3
    assert count_workers(3, "localhost:4") == 3
    assert count_workers(3, f"localhost:1, {socket.gethostname()}:2") == 3
    for num_proc, hosts, words in (
        (2, "localhost:1,elsewhere:1", "'elsewhere' in hosts is another host"),
        (3, "localhost:2", "has 2 slots, but num_proc is 3"),
        (1, "localhost:many", "is not HOST:WORKERS"),
        (0, None, "num_proc 0 is not possible: give 1 to 4096 workers"),
        (10**9, None, "num_proc 1000000000 is not possible: give 1 to 4096 workers"),
        (True, None, "num_proc True is not a whole number"),
        (2.5, None, "num_proc 2.5 is not a whole number"),
        ("x", None, "num_proc 'x' is not a whole number"),
        (None, None, "num_proc None is not a whole number"),
    ):
        with pytest.raises(ConfigError, match=words):
            count_workers(num_proc, hosts)


def test_values_that_the_launcher_would_refuse_are_refused_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="num_proc 1000000000 is not possible"):
        run(print, num_proc=10**9)
    with pytest.raises(ConfigError, match=r"start_timeout 0 is not possible: give 0\.001 to 1000000 seconds"):
        run(print, start_timeout=0)
    monkeypatch.setenv("UNDERTOW_SLICE", "many")
    with pytest.raises(ConfigError, match="UNDERTOW_SLICE='many' is not a whole number"):
        run(print)


def test_results_are_in_rank_order(tmp_path: Path) -> None:
    exchange = ExchangeFolder(tmp_path)
    for rank in (1, 0):
        exchange.put_result(rank, f"of {rank}")
    assert function._collect(exchange, 2, 0) == ["of 0", "of 1"]


def test_the_first_cause_is_named(tmp_path: Path) -> None:
    exchange = ExchangeFolder(tmp_path)
    exchange.put_failure(0, PeerLost("rank 2 is gone"))
    exchange.put_failure(2, KeyError("a defect"))
    exchange.put_failure(1, KeyError("a second defect"))
    with pytest.raises(RunFailed, match="rank 2 failed: KeyError: 'a defect'"):
        function._collect(exchange, 3, 1)


def test_a_worker_that_was_killed_is_named_by_the_others(tmp_path: Path) -> None:
    exchange = ExchangeFolder(tmp_path)
    exchange.put_failure(0, PeerLost("rank 1 is gone"))
    with pytest.raises(RuntimeError, match=r"rank 0 lost another worker: .*PeerLost: rank 1 is gone"):
        function._collect(exchange, 2, 1)


def test_a_worker_without_a_result_is_named(tmp_path: Path) -> None:
    exchange = ExchangeFolder(tmp_path)
    exchange.put_result(0, None)
    with pytest.raises(RunFailed, match="2 workers ended with exit code 0; no result of rank 1"):
        function._collect(exchange, 2, 0)
    exchange.put_result(1, None)
    with pytest.raises(RunFailed, match="exit code 7; see its output"):
        function._collect(exchange, 2, 7)


def test_a_launcher_that_started_no_worker_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="ended with exit code 2 before any worker ran; see its output"):
        function._collect(ExchangeFolder(tmp_path), 4096, 2)


def test_many_workers_without_a_result_are_counted(tmp_path: Path) -> None:
    exchange = ExchangeFolder(tmp_path)
    exchange.note_start(0)
    with pytest.raises(RunFailed, match=r"exit code 1; no result of ranks 0, 1, .* and 4080 more; see its output"):
        function._collect(exchange, 4096, 1)


def test_an_interrupted_call_waits_until_the_launcher_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher()
    with closing(CleanupGuard()) as guard:
        monkeypatch.setattr(function.subprocess, "Popen", lambda *words, **options: launcher)
        with pytest.raises(KeyboardInterrupt):
            function._launch(guard, ["launcher"])
    assert launcher.story == ["wait", "terminate", "wait"]


class Launcher:
    """A launcher that is interrupted by Ctrl-C while it runs."""

    pid = 1 << 30  # of no process

    def __init__(self) -> None:
        self.story: list[str] = []

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *error: object) -> None: ...

    def wait(self) -> int:
        self.story.append("wait")
        if len(self.story) == 1:
            raise KeyboardInterrupt
        return 143

    def terminate(self) -> None:
        self.story.append("terminate")
