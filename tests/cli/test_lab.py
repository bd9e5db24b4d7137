"""`undertow lab`: the command, from its help to its exit codes."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess

import pytest

from tests.support.command import Cli
from tests.support.labs import needs_lab

PR_CAPBSET_DROP = 24
CAP_SYS_ADMIN = 21

SHOW_PLACE = """
    import json, socket
    route = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    route.connect((os.environ["MASTER_ADDR"], 9))
    place = {"argv": sys.argv[1:], "host": socket.gethostname(), "address": route.getsockname()[0], **os.environ}
    mark(f"place{rank}.json", json.dumps(place))
"""


def read_places(cli: Cli, count: int) -> list[dict[str, str]]:
    return [json.loads((cli.folder / f"place{rank}.json").read_text()) for rank in range(count)]


def drop_privileges() -> None:
    """Between fork and exec: root by name only, as in a container."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)


def run_unprivileged(cli: Cli, *arguments: object) -> subprocess.CompletedProcess[str]:
    return cli.finish(cli.start(*arguments, preexec_fn=drop_privileges))


def test_help_has_every_option_and_examples(cli: Cli) -> None:
    assert "undertow lab run --hosts 4 --bandwidth 1gbit train.py" in cli.run("lab", "--help").stdout
    result = cli.run("lab", "run", "--help")
    assert result.returncode == 0
    for words in ("--hosts", "--bandwidth", "--unshaped", "--no-check", "--quiet-ranks", "--debug", "--epochs 3"):
        assert words in result.stdout
    assert cli.run("lab").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["walk"], "No such command 'walk'"),
        (["run"], "Missing argument 'CMD'"),
        (["run", "--hosts", "many", "true"], "--hosts"),
        (["run", "--hosts", "0", "true"], "--hosts 0 is not possible: give 1 to 250 hosts"),
        (["run", "--fast", "true"], "--fast"),
        (["run", "--bandwidth", "fast", "true"], "'fast' is not a bandwidth: write it as 1gbit"),
        (["run", "--bandwidth", "1,2gbit", "true"], "'1,2gbit' is not a bandwidth"),
        (["run", "nowhere.py"], "script 'nowhere.py' does not exist"),
        (["run", "nowhere"], "command 'nowhere' is not found"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(cli: Cli, arguments: list[str], words: str) -> None:
    result = cli.run("lab", *arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@needs_lab
def test_every_host_runs_the_command_once(cli: Cli) -> None:
    script = cli.write(SHOW_PLACE)
    result = cli.run("lab", "run", "--hosts", 3, script, "-x", "--hosts", "9", "--", "a b")
    assert result.returncode == 0
    assert result.stderr.splitlines()[0] == "undertow: 3 hosts, links as fast as this machine allows (no --bandwidth)"
    assert re.fullmatch(
        r"undertow: sent, by the kernel's count: host0 [\d.]+ k?B, host1 [\d.]+ k?B, host2 [\d.]+ k?B",
        result.stderr.splitlines()[-1],
    )
    for rank, place in enumerate(read_places(cli, 3)):
        assert (place["RANK"], place["WORLD_SIZE"], place["LOCAL_RANK"]) == (str(rank), "3", "0")
        assert (place["host"], place["address"]) == (f"host{rank}", f"10.77.0.{rank + 1}")
        assert place["argv"] == ["-x", "--hosts", "9", "--", "a b"]
        assert place["OMP_NUM_THREADS"] == "1"


@needs_lab
def test_the_links_are_checked_before_the_command_starts(cli: Cli) -> None:
    result = cli.run("lab", "run", "--hosts", 2, "--bandwidth", "3mbit", "--", "hostname")  # slow, so patient
    assert result.returncode == 0
    checking, line = r"undertow: checking the links \(.*\)", result.stderr.splitlines()[1]
    assert re.fullmatch(checking, result.stderr.splitlines()[0])  # it takes some seconds
    assert re.fullmatch(r"undertow: 2 hosts, 3 Mbit/s each way, checked \((9[5-9]|10[0-5])\.\d % of nominal\)", line)
    assert sorted(result.stdout.splitlines()) == ["[rank 0] host0", "[rank 1] host1"]


@needs_lab
def test_without_the_check_the_rate_still_holds(cli: Cli) -> None:
    result = cli.run(
        "lab", "run", "--hosts", 2, "--bandwidth", "1gbit", "--no-check", "tc", "qdisc", "show", "dev", "eth0"
    )
    assert result.stderr.splitlines()[0] == "undertow: 2 hosts, 1 Gbit/s each way, not checked"
    assert len(re.findall(r"\[rank [01]\] qdisc tbf .* rate 1Gbit ", result.stdout)) == 2


@needs_lab
def test_a_bandwidth_that_this_machine_does_not_have_is_refused(cli: Cli) -> None:
    result = cli.run("lab", "run", "--hosts", 2, "--bandwidth", "1000gbit", cli.write("mark('started')"))
    assert (result.returncode, result.stdout) == (1, "")
    *checking, line = result.stderr.splitlines()
    assert checking in ([], ["undertow: checking the links (0 %)"])  # if it took a while
    assert re.match(
        r"undertow lab run: the link from host 0 to host 1 carries .* instead of 1000 Gbit/s \(.* %\): figures from it "
        r"would be wrong\. Use a lower --bandwidth on this machine",
        line,
    )
    assert not (cli.folder / "started").exists()


@needs_lab
def test_a_tool_that_fails_is_quoted_and_debug_shows_where(cli: Cli) -> None:
    tool = cli.folder / "tc"
    tool.write_text("#!/bin/sh\necho no such thing as a qdisc >&2; exit 1\n")
    tool.chmod(0o755)
    cli.environment["PATH"] = f"{cli.folder}:{cli.environment['PATH']}"
    command = ["--hosts", 2, "--bandwidth", "1gbit", "true"]
    words = "cannot set up the emulated network: tc failed: no such thing as a qdisc\n"
    result = cli.run("lab", "run", *command)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"undertow lab run: {words}")
    result = cli.run("lab", "run", "--debug", *command)
    assert result.returncode != 0
    assert f"undertow.errors.LabError: {words}" in result.stderr
    assert ", in shape\n" in result.stderr  # what happened inside of the lab


@needs_lab
def test_the_first_cause_comes_last_with_its_host(cli: Cli) -> None:
    script = cli.write("""
        if rank == 1:
            raise ValueError("broken")
        time.sleep(600)
    """)
    result = cli.run("lab", "run", "--hosts", 3, script)
    lines = result.stderr.splitlines()
    assert result.returncode == 1
    assert lines[-1] == "ValueError: broken"
    assert "rank 1 (host host1) failed first: exit code 1" in lines
    assert "rank 0 was ended, because another rank failed" in lines


@needs_lab
@pytest.mark.parametrize(("body", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_the_code_is_the_first_causes(cli: Cli, body: str, code: int) -> None:
    assert cli.run("lab", "run", "--hosts", 2, cli.write(f"if rank: {body}")).returncode == code


@needs_lab
def test_quiet_ranks_shows_rank_0_as_it_is(cli: Cli) -> None:
    result = cli.run("lab", "run", "--hosts", 3, "--quiet-ranks", "hostname")
    assert (result.returncode, result.stdout) == (0, "host0\n")


@needs_lab
def test_rank_0_has_the_users_input(cli: Cli) -> None:
    process = cli.start("lab", "run", "--hosts", 2, "--quiet-ranks", "cat", stdin=subprocess.PIPE)
    out, _ = process.communicate("words\n", timeout=60)
    assert (process.returncode, out) == (0, "words\n")


@needs_lab
def test_workers_meet_over_the_emulated_network(cli: Cli) -> None:
    script = cli.write("""
        from undertow.engine.coordinator.rendezvous import attend
        everybody = attend(
            os.environ["UNDERTOW_RENDEZVOUS"], os.environ["UNDERTOW_TOKEN"].encode(),
            name="test", rank=rank, size=3, payload=b"%d" % rank, timeout_s=30,
        )
        mark(f"met{rank}", everybody)
    """)
    assert cli.run("lab", "run", "--hosts", 3, script).returncode == 0
    assert [(cli.folder / f"met{rank}").read_text() for rank in range(3)] == ["[b'0', b'1', b'2']"] * 3


@needs_lab
def test_two_labs_at_once_do_not_see_each_other(cli: Cli) -> None:
    script = cli.write("""
        import socket
        lab = sys.argv[1]
        with socket.create_server(("10.77.0.1" if rank == 0 else "127.0.0.1", 4242)):
            mark(f"{lab}{rank}", socket.gethostname())
            for name in ("a0", "a1", "b0", "b1"):
                wait_for(name)
    """)
    processes = [cli.start("lab", "run", "--hosts", 2, script, lab) for lab in "ab"]
    assert [cli.finish(process).returncode for process in processes] == [0, 0]
    assert [(cli.folder / name).read_text() for name in ("a0", "a1", "b0", "b1")] == ["host0", "host1"] * 2


@needs_lab
def test_many_hosts_are_summed_up(cli: Cli) -> None:
    result = cli.run("lab", "run", "--hosts", 32, "--bandwidth", "1gbit", "--no-check", "true")
    assert result.returncode == 0
    assert re.search(r"count: [\d.]+ k?B to [\d.]+ k?B per host, [\d.]+ k?B in all\n$", result.stderr)


def test_unshaped_needs_nothing_and_says_so(cli: Cli) -> None:
    script = cli.write(SHOW_PLACE)
    result = run_unprivileged(cli, "lab", "run", "--unshaped", "--hosts", 2, script)
    assert result.returncode == 0
    lines = result.stderr.splitlines()
    assert lines[0] == "undertow: 2 hosts on this machine's loopback: nothing is shaped"
    assert re.fullmatch(r"undertow: this machine's loopback carried [\d.]+ [kM]?B, by the kernel's count", lines[1])
    for rank, place in enumerate(read_places(cli, 2)):
        assert place["RANK"] == str(rank)
        assert place["address"] == place["MASTER_ADDR"] == place["UNDERTOW_ADDRESS"] == "127.0.0.1"


def test_unshaped_with_a_bandwidth_says_that_it_has_no_effect(cli: Cli) -> None:
    result = cli.run("lab", "run", "--unshaped", "--bandwidth", "1gbit", "--hosts", 1, "true")
    assert result.returncode == 0
    words = "undertow: 1 host on this machine's loopback: nothing is shaped, so --bandwidth has no effect"
    assert result.stderr.splitlines()[0] == words


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give privileges up")
def test_without_privileges_one_line_names_the_alternative(cli: Cli) -> None:
    result = run_unprivileged(cli, "lab", "run", "--hosts", 2, "true")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "this container may not create namespaces" in result.stderr
    assert "--unshaped" in result.stderr
    check = run_unprivileged(cli, "lab", "check")
    assert (check.returncode, check.stderr) == (1, "")
    assert check.stdout.startswith("no: this container may not create namespaces")


@needs_lab
def test_check_reports_whether_hosts_can_be_emulated(cli: Cli) -> None:
    result = cli.run("lab", "check")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("yes: root, ip, tc and namespaces are there")
    assert re.search(r"one link alone carries .* Gbit/s on this machine \(\d+ cores\)\n$", result.stdout)
