"""`undertow doctor` on one host, and `undertow run --check`: the command, from its help to its exit codes."""

from __future__ import annotations

import json
import signal
import socket
import sys

import pytest

from tests.support.command import Cli, find_imports, wait_until
from tests.support.doctors import lines_of, spare_torch
from tests.support.ports import free_port

BROKEN_TORCH = """
import sys
class Finder:
    def find_spec(self, name, *rest):
        if name == "torch":
            raise ImportError("libtorch_cpu.so: cannot open shared object file")
sys.meta_path.insert(0, Finder())
"""
SLOW_TORCH = """
import pathlib, sys, time
if any(word.endswith("torch_probe.py") for word in sys.orig_argv):
    pathlib.Path({file!r}).touch()
    time.sleep(600)
"""
TOO_FEW_FILES = 64


def test_help_has_every_option_and_examples(cli: Cli) -> None:
    result = cli.run("doctor", "--help")
    assert result.returncode == 0
    for words in ("--hosts", "--node-rank", "--port", "--nproc-per-node", "--timeout", "--seconds", "--all", "--json"):
        assert words in result.stdout
    assert "undertow doctor --hosts" in result.stdout


def test_it_imports_neither_torch_nor_numpy_which_may_be_broken() -> None:
    imported = find_imports("from undertow.cli import make_app; make_app(['doctor'])")
    assert "undertow.cli.doctor" in imported
    assert not {"torch", "numpy", "ml_dtypes"} & set(imported)


def test_this_host_with_its_real_torch(cli: Cli) -> None:
    result = cli.run("doctor")
    assert result.returncode == 0
    found = lines_of(result)
    assert found["python"] == f"ok {sys.version.split()[0]}"
    assert found["torch"].startswith("ok 2.")
    assert found["interface in use"].startswith("ok lo (127.0.0.1, MTU ")
    assert found["interface in use"].endswith("because only this host takes part")
    assert {"undertow", "packages", "devices", "interfaces", "ports", "cores", "open files", "settings"} <= set(found)
    assert result.stdout.splitlines()[-1].startswith("training would work on this host; ")
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hosts", "a,a"], "--hosts names a twice"),
        (["--hosts", "192.0.2.1,192.0.2.9"], "none of 192.0.2.1, 192.0.2.9 is this host"),
        (["--hosts", "127.0.0.1,localhost"], "127.0.0.1 and localhost of --hosts have the same address, 127.0.0.1"),
        (["--hosts", "127.0.0.1,127.0.0.2", "--node-rank", "2"], "--node-rank 2 is outside of 0 to 1"),
        (["--timeout", "0"], "--timeout 0 is not possible"),
        (["a"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(cli: Cli, arguments: list[str], words: str) -> None:
    result = cli.run("doctor", *arguments)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr


def test_a_torch_that_cannot_be_imported_is_a_failure_with_its_error(cli: Cli) -> None:
    spare_torch(cli, BROKEN_TORCH)
    result = cli.run("doctor")
    assert result.returncode == 1
    *_, failure, advice, verdict = result.stdout.splitlines()
    assert failure.split()[:2] == ["failure", "torch"]
    assert "ImportError: libtorch_cpu.so: cannot open shared object file" in failure
    assert "-> reinstall it: pip install 'undertow[torch]'" in advice
    assert verdict.startswith("training would fail: torch ")


def test_settings_with_their_origin_and_no_secret(cli: Cli) -> None:
    spare_torch(cli)
    cli.environment |= {"UNDERTOW_TOKEN": "hush-hush", "UNDERTOW_PLAN": "dense", "UNDERTOW_TOKNE": "x"}
    cli.environment["UNDERTOW_SLICE"] = "big"
    result = cli.run("doctor")
    assert result.returncode == 1
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert "UNDERTOW_TOKEN = set, 9 characters, from the variable" in lines
    assert "UNDERTOW_PLAN = dense, from the variable" in lines
    assert "-> did you mean UNDERTOW_TOKEN? Otherwise unset it" in lines
    assert lines[-1].startswith("training would fail: UNDERTOW_SLICE='big' is not a whole number: give 0 to ")
    everything = cli.run("doctor", "--all").stdout
    assert "UNDERTOW_CREDIT = 0, the default" in everything
    assert "hush" not in result.stdout + everything + result.stderr + cli.run("doctor", "--json").stdout


def test_the_interface_follows_master_addr_and_its_port_must_be_free(cli: Cli) -> None:
    spare_torch(cli)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        cli.environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        result = cli.run("doctor")
    found = lines_of(result)
    assert result.returncode == 1
    assert found["interface in use"].endswith("because 127.0.0.1 (MASTER_ADDR) is this host's own")
    taken = f"port {port} of the rendezvous cannot be bound: Address already in use"
    assert found["ports"] == f"failure {taken}"
    assert cli.run("doctor").returncode == 0


def test_too_few_open_files_are_a_failure(cli: Cli) -> None:
    def allow_few() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (TOO_FEW_FILES, TOO_FEW_FILES))

    spare_torch(cli)
    result = cli.finish(cli.start("doctor", preexec_fn=allow_few))
    assert result.returncode == 1
    assert lines_of(result)["open files"].startswith(f"failure a process may open {TOO_FEW_FILES} files")


def test_json_is_all_of_stdout(cli: Cli) -> None:
    spare_torch(cli)
    known = json.loads(cli.run("doctor", "--json", "-n", 2).stdout)
    assert known["verdict"].startswith("training would work")
    assert {finding["level"] for finding in known["report"]["findings"]} <= {"ok", "note", "warning"}
    assert any("127.0.0.1" in one["addresses"] for one in known["report"]["facts"]["network"]["interfaces"])


def test_an_interrupt_ends_it_in_one_line(cli: Cli) -> None:
    file = cli.folder / "importing"
    spare_torch(cli, SLOW_TORCH.format(file=str(file)))
    process = cli.start("doctor")
    wait_until(file.exists)
    process.send_signal(signal.SIGINT)
    result = cli.finish(process)
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr.splitlines()[-1] == "undertow doctor: interrupted"
    assert "Traceback" not in result.stderr


def test_two_doctors_on_loopback_meet_and_measure(cli: Cli) -> None:
    spare_torch(cli)
    hosts = ["--hosts", "127.0.0.1,127.0.0.2", "--port", free_port(), "--seconds", 0.05]
    second = cli.start("doctor", *hosts, "--node-rank", 1)
    first = cli.run("doctor", *hosts, "--node-rank", 0)
    other = cli.finish(second)
    assert (first.returncode, other.returncode) == (0, 0), first.stdout + other.stdout
    found = lines_of(first)
    assert found["firewall"].startswith("ok every host can connect to every other")
    assert found["hosts"] == ("note 127.0.0.1 and 127.0.0.2 are the same machine: no network is measured between them")
    rows = [line.split() for line in first.stdout.splitlines() if line.startswith(" 127.0.0.1 ")]
    assert [row[:2] for row in rows] == [["127.0.0.1", "-"]] * 2
    assert all(float(row[2]) > 0 for row in rows)
    assert other.stdout.splitlines()[-2:] == ["127.0.0.1 shows the rest", first.stdout.splitlines()[-1]]


def test_a_job_is_checked_before_it_starts(cli: Cli) -> None:
    spare_torch(cli)
    result = cli.run("run", "--check", "--overlap", "-n", 1, cli.write("print('started')"))
    assert (result.returncode, result.stdout) == (0, "[rank 0] started\n")
    assert "training would work on this host" in result.stderr
    assert "UNDERTOW_OVERLAP = on, from the argument" in result.stderr


def test_a_job_that_would_fail_is_not_started(cli: Cli) -> None:
    spare_torch(cli)
    cli.environment["UNDERTOW_ADDRESS"] = "192.0.2.77"
    result = cli.run("run", "--check", cli.write("mark('started')"))
    assert (result.returncode, result.stdout) == (1, "")
    assert "training would fail: 192.0.2.77 is not an address of this host" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("undertow run: nothing was started")
    assert not (cli.folder / "started").exists()


def test_one_host_with_check_is_enough_and_all_report_a_failure(cli: Cli) -> None:
    spare_torch(cli)
    path = cli.write("mark(f'started{rank}')")
    hosts = ["--nnodes", 2, "--master-port", free_port()]
    first = cli.start("run", *hosts, "--node-rank", 0, path)
    environment = {**cli.environment, "UNDERTOW_ADDRESS": "192.0.2.77"}
    second = cli.finish(cli.start("run", "--check", *hosts, "--node-rank", 1, path, env=environment))
    other = cli.finish(first)
    assert (second.returncode, other.returncode) == (1, 1)
    for result in (second, other):
        assert "192.0.2.77 is not an address of this host" in result.stderr
    assert not list(cli.folder.glob("started*"))
