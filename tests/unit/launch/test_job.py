"""A job is checked before it starts, and workers get torchrun's variables."""

from __future__ import annotations

import zlib

import pytest

from undertow.cli.run import find_misplaced
from undertow.errors import ConfigError
from undertow.launch.host_rendezvous import HostAssignment
from undertow.launch.job import DEFAULT_MASTER_PORT, RUNNER, Job, choose_master, read_job_settings
from undertow.launch.worker_environment import build_environment

SEAT = HostAssignment(
    node_rank=1,
    first_rank=3,
    nproc=2,
    world_size=5,
    master_addr="10.0.0.1",
    master_port=29500,
    rendezvous="10.0.0.1:4242",
    token="secret",
    start_timeout_s=30.0,
)


def test_a_worker_gets_its_ranks_and_addresses() -> None:
    environment = build_environment({"HOME": "/home/me", "RANK": "77"}, SEAT, local_rank=1)
    assert environment == {
        "HOME": "/home/me",
        "RANK": "4",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "UNDERTOW_RENDEZVOUS": "10.0.0.1:4242",
        "UNDERTOW_TOKEN": "secret",
        "UNDERTOW_START_TIMEOUT": "30",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": str(zlib.crc32(SEAT.token.encode())),
        "OMP_NUM_THREADS": "1",
    }


def test_the_users_thread_count_wins() -> None:
    assert build_environment({"OMP_NUM_THREADS": "6"}, SEAT, local_rank=0)["OMP_NUM_THREADS"] == "6"


def test_arguments_after_the_script_belong_to_the_script() -> None:
    assert Job(script="pkg.train", is_module=True, args=("-n", "3")).command == (*RUNNER, "-m", "pkg.train", "-n", "3")


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"nproc": 0}, "-n 0"),
        ({"nnodes": 0}, "--nnodes 0"),
        ({"nnodes": 2, "node_rank": 2}, "--node-rank 2 is outside of 0 to 1"),
        ({"node_rank": -1}, "--node-rank -1"),
        ({"master_port": 70000}, "--master-port 70000"),
        ({"start_timeout_s": 0.0}, "--start-timeout 0"),
        ({"script": "nowhere.py"}, "script 'nowhere.py' does not exist"),
        ({"script": "."}, r"script '\.' is a folder"),
    ],
)
def test_impossible_jobs_are_refused(wish: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Job(**{"script": __file__, **wish})  # type: ignore[arg-type]


def test_the_launcher_ignores_the_rank_of_an_outer_job() -> None:
    assert read_job_settings({"RANK": "9", "WORLD_SIZE": "4", "UNDERTOW_TOKEN": "x"}).token == "x"


def test_one_host_takes_a_free_port_and_ignores_an_outer_job() -> None:
    settings = read_job_settings({"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "1234"})
    assert choose_master(settings, nnodes=1, addr=None, port=None) == ("127.0.0.1", 0)
    assert choose_master(settings, nnodes=1, addr=None, port=77) == ("127.0.0.1", 77)


def test_several_hosts_take_argument_then_variable_then_default() -> None:
    settings = read_job_settings({"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "1234"})
    assert choose_master(settings, nnodes=2, addr="10.0.0.1", port=77) == ("10.0.0.1", 77)
    assert choose_master(settings, nnodes=2, addr=None, port=None) == ("10.0.0.9", 1234)
    default = choose_master(read_job_settings({}), nnodes=2, addr=None, port=None)
    assert default == ("127.0.0.1", DEFAULT_MASTER_PORT)


@pytest.mark.parametrize(
    ("args", "given", "option"),
    [
        (["-n", "2"], [], "-n"),
        (["-n2"], [], "-n"),
        (["--lr", "1", "--nproc_per_node=2"], [], "--nproc_per_node"),
        (["--nproc-per-node", "2", "--nnodes", "2"], [], "--nproc-per-node"),
        (["--node-rank", "1"], ["nproc"], "--node-rank"),
        (["-n", "2"], ["nproc"], None),
        (["-n", "2", "--nnodes", "2"], ["nproc"], "--nnodes"),
        (["-name", "--nodes", "n", "-m"], [], None),
    ],
)
def test_launcher_options_after_the_script_are_found_unless_given_before(
    args: list[str], given: list[str], option: str | None
) -> None:
    assert find_misplaced(args, given) == option
