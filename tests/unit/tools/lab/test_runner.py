"""What a lab job starts and prints, why it may not start, and how an error reaches the caller."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from tests.support.bench_fakes import FakeProgress
from undertow.errors import ConfigError
from undertow.launch.job import RUNNER
from undertow.progress import Progress
from undertow.tools.lab import isolation, runner
from undertow.tools.lab.isolation import find_obstacle
from undertow.tools.lab.network import Host, Network, open_loopback
from undertow.tools.lab.runner import LabJob, describe_traffic, find_command
from undertow.tools.lab.worker_environments import open_rendezvous


def test_a_python_file_is_run_with_this_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert find_command([str(script), "-x"], {}) == (sys.executable, "-u", *RUNNER, str(script), "-x")
    with pytest.raises(ConfigError, match=r"script 'nowhere\.py' does not exist"):
        find_command(["nowhere.py"], {})


def test_any_other_command_is_looked_up_in_the_users_path(tmp_path: Path) -> None:
    program = tmp_path / "train"
    program.touch(mode=0o755)
    assert find_command(["train", "-x"], {"PATH": str(tmp_path)}) == (str(program), "-x")
    assert find_command([str(program)], {"PATH": ""}) == (str(program),)
    for name in ("nowhere", "./nowhere", str(tmp_path), ""):
        with pytest.raises(ConfigError, match="is not found; give a Python file, or a command"):
            find_command([name], {"PATH": str(tmp_path)})


def test_an_impossible_number_of_hosts_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="0 hosts are not possible"):
        LabJob(command=("true",), hosts=0)


class Wired:
    """Network with links, for the texts that describe it."""

    is_shaped = True

    def __init__(self, hosts: int) -> None:
        self.hosts = [Host(index, f"host{index}", f"10.77.0.{index + 1}") for index in range(hosts)]


def test_somebody_may_watch_while_the_links_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(network: Network, rate_bits_per_s: float, progress: Progress) -> float:
        for _ in network.hosts:
            progress.advance()
        return 0.99

    monkeypatch.setattr(runner, "check_links", check)
    monkeypatch.setattr(Wired, "shape", lambda network, rate: None, raising=False)
    progress = FakeProgress()
    job = LabJob(command=("true",), hosts=3, rate_bits_per_s=1e9)
    words = runner._prepare(Wired(3), job, progress)  # type: ignore[arg-type]
    assert words == "3 hosts, 1 Gbit/s each way, checked (99.0 % of nominal)"
    assert (progress.said, progress.expected, progress.done) == (["checking the links"], 3, 3)


def test_few_hosts_are_listed_and_many_are_summed_up() -> None:
    few, many = Wired(2), Wired(32)
    words = "sent, by the kernel's count: "
    assert describe_traffic([12_345_678, 4_321], few) == f"{words}host0 12.3 MB, host1 4.32 kB"  # type: ignore[arg-type]
    sent = [1_000_000 * (host + 1) for host in range(32)]
    assert describe_traffic(sent, many) == f"{words}1 MB to 32 MB per host, 528 MB in all"  # type: ignore[arg-type]


def test_on_loopback_only_the_sum_is_known() -> None:
    with open_loopback(4) as network:
        words = "this machine's loopback carried 8 MB, by the kernel's count"
        assert describe_traffic([2_000_000] * 4, network) == words


def test_loopback_hosts_are_all_this_one() -> None:
    with open_loopback(3) as network:
        assert [(host.index, host.name, host.address) for host in network.hosts] == [
            (index, f"host{index}", "127.0.0.1") for index in range(3)
        ]
        assert not network.is_shaped
        network.shape(1e9)
        with network.hosts[2].entered():
            pass
        assert len(network.counters()) == 3


@pytest.mark.parametrize(
    ("obstacle", "words"),
    [
        (("sys.platform", "darwin"), "emulated hosts need Linux, and this is darwin"),
        (("os.geteuid", lambda: 1000), "emulated hosts need root; try it with sudo"),
        (("find_tool", lambda name: None), "emulated hosts need the command ip; install the package iproute2"),
        (("find_tool", lambda name: None if name == "tc" else name), "need the command tc; install the package iprou"),
        (("_try_namespaces", lambda: errno.EPERM), "this container may not create namespaces"),
        (("_try_namespaces", lambda: errno.ENOSPC), "the kernel cannot create namespaces: No space left on device"),
        (("_try_namespaces", lambda: 0), None),
    ],
)
def test_the_obstacle_is_named(
    monkeypatch: pytest.MonkeyPatch, obstacle: tuple[str, object], words: str | None
) -> None:
    good = {"sys.platform": "linux", "os.geteuid": lambda: 0, "find_tool": str, "_try_namespaces": lambda: 0}
    for name, value in {**good, obstacle[0]: obstacle[1]}.items():
        monkeypatch.setattr(f"{isolation.__name__}.{name}", value)
    found = find_obstacle()
    assert found == words if words is None else words in str(found)


def meet(network: Network, **environ: str) -> list[dict[str, str]]:
    with open_rendezvous(network, environ, start_timeout_s=7) as environments:
        return environments


def test_a_meeting_has_a_place_for_every_host() -> None:
    with open_loopback(3) as network:
        environments = meet(network, HOME="/home/me", RANK="77", UNDERTOW_ADDRESS="192.0.2.1")
    for rank, environment in enumerate(environments):
        assert environment["RANK"] == environment["GROUP_RANK"] == str(rank)
        assert environment["WORLD_SIZE"] == "3"
        assert (environment["LOCAL_RANK"], environment["LOCAL_WORLD_SIZE"]) == ("0", "1")
        assert environment["MASTER_ADDR"] == environment["UNDERTOW_ADDRESS"] == "127.0.0.1"
        assert environment["UNDERTOW_RENDEZVOUS"].startswith("127.0.0.1:")
        assert environment["UNDERTOW_START_TIMEOUT"] == "7"
        assert environment["HOME"] == "/home/me"
        assert "GLOO_SOCKET_IFNAME" not in environment
    assert len({environment["UNDERTOW_TOKEN"] for environment in environments}) == 1


def test_the_users_number_of_threads_wins() -> None:
    with open_loopback(1) as network:
        assert meet(network)[0]["OMP_NUM_THREADS"] == "1"
        assert meet(network, OMP_NUM_THREADS="")[0]["OMP_NUM_THREADS"] == "1"
        assert meet(network, OMP_NUM_THREADS="5")[0]["OMP_NUM_THREADS"] == "5"


def test_every_meeting_has_a_token_of_its_own() -> None:
    with (
        open_loopback(1) as network,
        open_rendezvous(network, os.environ) as one,
        open_rendezvous(network, os.environ) as two,
    ):
        for name in ("UNDERTOW_TOKEN", "UNDERTOW_RENDEZVOUS", "MASTER_PORT"):
            assert one[0][name] != two[0][name]
