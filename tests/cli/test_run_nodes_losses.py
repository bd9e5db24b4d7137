"""Losses between the rendezvous of the hosts and that of the workers: named on every host before any timeout."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.command import Cli, is_alive, wait_until
from tests.support.node_launchers import start_nodes

# Rank 0 waits for the others at the workers' rendezvous; the last rank never joins it.
SCRIPT = """
    mark(f"pid{rank}", os.getpid())
    if rank == 1:
        time.sleep(600)
    import undertow
    mark("joining")
    undertow.init()
"""


def start_pair(cli: Cli) -> tuple[list[subprocess.Popen[str]], int]:
    """Return both launchers and the pid of the worker on the second host, once rank 0 is about to wait for it."""
    nodes = start_nodes(cli, SCRIPT, 1, 1)
    cli.wait_for_files("joining", 1)
    [path] = cli.wait_for_files("pid1", 1)
    return nodes, int(path.read_text())


def check_named(result: subprocess.CompletedProcess[str], cause: str) -> None:
    lines = result.stderr.splitlines()
    assert result.returncode == 1
    assert cause in lines[-1]
    assert lines[-2] == "rank 0 was ended, because the job has ended"
    assert "did not arrive" not in result.stderr
    assert "Traceback" not in result.stderr


def test_a_worker_that_is_killed_is_named_on_the_other_host(cli: Cli) -> None:
    (first, second), pid = start_pair(cli)
    os.kill(pid, signal.SIGKILL)
    check_named(
        cli.finish(first), f"rank 1 on host {socket.gethostname()} was killed by SIGKILL before the workers had met"
    )
    result = cli.finish(second)
    assert result.returncode == 137
    assert "rank 1 (host " in result.stderr


@pytest.mark.parametrize("victim", [0, 1])
def test_a_launcher_that_is_killed_is_named_on_the_other_host(cli: Cli, victim: int) -> None:
    nodes, _ = start_pair(cli)
    pids = [int((cli.folder / f"pid{rank}").read_text()) for rank in range(2)]
    nodes[victim].kill()
    result = cli.finish(nodes[1 - victim])
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("the launcher on host ")
    assert (
        f"(--node-rank {victim}, rank {victim}) was killed, or its connection was cut, before the workers had" in last
    )
    wait_until(lambda: not any(map(is_alive, pids)))


def make_sibling(cli: Cli, name: str) -> Cli:
    (cli.folder / name).mkdir()
    sibling = Cli(cli.folder / name)
    sibling.started = cli.started
    return sibling


# A job that never forms a group of undertow; its user may stop it.
LONER = """
    mark(f"pid{rank}", os.getpid())
    wait_for("end")
"""


def test_stopped_processes_are_named_on_both_hosts(cli: Cli) -> None:
    """A worker of one job and a launcher of another, at the same time: each takes ten seconds to be missed.

    A worker and a launcher of a third job, whose workers wait for no one, are not.
    """
    other, loner = make_sibling(cli, "other"), make_sibling(cli, "loner")
    loners = start_nodes(loner, LONER, 1, 1)
    alone = [int(path.read_text()) for path in loner.wait_for_files("pid*", 2)]
    (first, second), pid = start_pair(cli)
    (other_first, other_second), _ = start_pair(other)
    loners[1].send_signal(signal.SIGSTOP)
    os.kill(alone[0], signal.SIGSTOP)
    os.kill(pid, signal.SIGSTOP)
    other_second.send_signal(signal.SIGSTOP)
    cause = f"was stopped (SIGSTOP; pid {pid}) before the workers had met"
    check_named(cli.finish(first), cause)
    result = cli.finish(second)
    assert result.returncode == 1
    assert cause in result.stderr.splitlines()[-1]
    check_named(cli.finish(other_first), "(--node-rank 1, rank 1) gave no sign of life for ")
    other_second.send_signal(signal.SIGCONT)
    result = cli.finish(other_second)
    assert result.returncode == 1
    assert "gave no sign of life" in result.stderr.splitlines()[-1]
    loners[1].send_signal(signal.SIGCONT)
    os.kill(alone[0], signal.SIGCONT)
    (loner.folder / "end").touch()
    assert [loner.finish(process).returncode for process in loners] == [0, 0]


@pytest.mark.parametrize("nprocs", [(1, 1), (2,)], ids=["two hosts", "one host"])
def test_a_worker_that_ends_in_order_is_named_where_others_wait_for_it(cli: Cli, nprocs: tuple[int, ...]) -> None:
    script = """
        if rank == 0:
            import undertow
            undertow.init()
    """
    results = [cli.finish(process) for process in start_nodes(cli, script, *nprocs)]
    check_named(
        results[0],
        f"rank 1 on host {socket.gethostname()} ended with exit code 0 before the workers had met, "
        "and others wait for it",
    )
    assert all(result.returncode == 0 for result in results[1:])


def test_after_the_workers_have_met_their_own_error_decides(cli: Cli) -> None:
    script = """
        import undertow
        undertow.init()
        mark(f"met{rank}", os.getpid())
        try:
            undertow.barrier() if rank == 0 else time.sleep(600)
        except undertow.PeerLost as error:
            print("noticed", error)
    """
    first, second = start_nodes(cli, script, 1, 1)
    paths: list[Path] = cli.wait_for_files("met*", 2)
    os.kill(int(paths[1].read_text()), signal.SIGKILL)
    result = cli.finish(first)
    assert (result.returncode, "noticed rank 1 on host" in result.stdout) == (0, True)
    assert "before the workers had met" not in result.stderr
    assert cli.finish(second).returncode == 137
