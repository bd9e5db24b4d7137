"""`undertow run` on several hosts, all of them this one."""

from __future__ import annotations

import json

from tests.support.command import Cli
from tests.support.node_launchers import start_nodes
from tests.support.ports import free_port

SCRIPT = """
    import json, socket
    if rank == 0:
        # As torch's own store does it: the port as given must be free by now.
        socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).close()
    mark(f"env{rank}.json", json.dumps(dict(os.environ)))
"""


def test_hosts_with_different_numbers_of_workers_make_one_job(cli: Cli) -> None:
    results = [cli.finish(process) for process in start_nodes(cli, SCRIPT, 2, 1, 3)]
    assert [result.returncode for result in results] == [0, 0, 0]
    environments = [json.loads((cli.folder / f"env{rank}.json").read_text()) for rank in range(6)]
    assert [environment["GROUP_RANK"] for environment in environments] == list("001222")
    assert [environment["LOCAL_RANK"] for environment in environments] == list("010012")
    assert [environment["LOCAL_WORLD_SIZE"] for environment in environments] == list("221333")
    assert {environment["WORLD_SIZE"] for environment in environments} == {"6"}
    for name in ("UNDERTOW_TOKEN", "UNDERTOW_RENDEZVOUS", "MASTER_PORT"):
        assert len({environment[name] for environment in environments}) == 1


def test_a_token_sent_without_a_secret_is_reported_by_the_first_host(cli: Cli) -> None:
    results = [cli.finish(process) for process in start_nodes(cli, SCRIPT, 1, 1)]
    assert ["set the same UNDERTOW_TOKEN on every host" in result.stderr for result in results] == [True, False]


def test_a_shared_secret_guards_the_meeting_of_the_hosts(cli: Cli) -> None:
    cli.environment["UNDERTOW_TOKEN"] = "shared"
    results = [cli.finish(process) for process in start_nodes(cli, SCRIPT, 1, 1)]
    assert [(result.returncode, result.stderr) for result in results] == [(0, ""), (0, "")]
    assert json.loads((cli.folder / "env1.json").read_text())["UNDERTOW_TOKEN"] == "shared"


def test_a_host_without_the_secret_is_refused(cli: Cli) -> None:
    path, master = cli.write(SCRIPT), ["--nnodes", 2, "--master-port", free_port(), "--start-timeout", 20]
    stranger = cli.start("run", *master, "--node-rank", 1, path)
    cli.environment["UNDERTOW_TOKEN"] = "secret"
    first = cli.start("run", *master, "--node-rank", 0, path)
    result = cli.finish(stranger)
    assert result.returncode == 1
    assert "wrong token" in result.stderr
    assert "set the same UNDERTOW_TOKEN on every host" in result.stderr
    first.terminate()
    first.communicate()


def test_a_host_that_never_comes_is_named(cli: Cli) -> None:
    arguments = ["--nnodes", 3, "--node-rank", 0, "--master-port", free_port(), "--start-timeout", 0.5]
    result = cli.run("run", *arguments, cli.write(SCRIPT))
    assert result.returncode == 1
    assert "ranks 1 and 2 of 3 did not arrive within 0.5 s" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_hosts_that_disagree_about_their_number_are_refused(cli: Cli) -> None:
    path, port = cli.write(SCRIPT), free_port()
    timeout = ["--start-timeout", 3, "--master-port", port]
    pair = [cli.start("run", *timeout, "--nnodes", 2 + rank, "--node-rank", rank, path) for rank in range(2)]
    results = [cli.finish(process) for process in pair]
    assert [result.returncode for result in results] == [1, 1]
    assert sum("start all with the same number" in result.stderr for result in results) == 1


def test_two_hosts_with_one_number_are_refused(cli: Cli) -> None:
    path, port = cli.write(SCRIPT), free_port()
    arguments = ["--start-timeout", 3, "--master-port", port, "--nnodes", 3]
    cli.start("run", *arguments, "--node-rank", 0, path)
    pair = [cli.start("run", *arguments, "--node-rank", 1, path) for _ in range(2)]
    results = [cli.finish(process) for process in pair]
    assert sorted(result.returncode for result in results) == [1, 2]
    assert sum("rank 1 of 3 is taken" in result.stderr for result in results) == 1


def test_a_failure_is_named_with_its_global_rank(cli: Cli) -> None:
    script = """
        if rank == 2:
            wait_for("others-have-ended")
            sys.exit(4)
    """
    first, second = start_nodes(cli, script, 2, 1)
    assert cli.finish(first).returncode == 0
    (cli.folder / "others-have-ended").touch()
    result = cli.finish(second)
    assert result.returncode == 4
    assert "rank 2 (host " in result.stderr
