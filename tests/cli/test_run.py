"""`undertow run` on this host: places, output, exit codes."""

from __future__ import annotations

import json
import os
import pty
import socket

import pytest

from tests.support.command import HANG_S, Cli, is_alive, wait_until

SHOW_ENVIRONMENT = """
    import json
    mark(f"env{rank}.json", json.dumps({"argv": sys.argv[1:], **os.environ}))
"""


def read_environments(cli: Cli, count: int) -> list[dict[str, str]]:
    return [json.loads((cli.folder / f"env{rank}.json").read_text()) for rank in range(count)]


def test_workers_find_their_places(cli: Cli) -> None:
    assert cli.run("run", "-n", 3, cli.write(SHOW_ENVIRONMENT)).returncode == 0
    environments = read_environments(cli, 3)
    for rank, environment in enumerate(environments):
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(rank)
        assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "3"
        assert environment["GROUP_RANK"] == "0"
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert environment["OMP_NUM_THREADS"] == "1"
    for name in ("MASTER_PORT", "UNDERTOW_TOKEN", "UNDERTOW_RENDEZVOUS"):
        assert len({environment[name] for environment in environments}) == 1
        assert environments[0][name]


def test_each_run_has_a_fresh_token_unless_the_user_gives_one(cli: Cli) -> None:
    script = cli.write(SHOW_ENVIRONMENT)
    tokens = []
    for given in (None, None, "mine"):
        if given:
            cli.environment["UNDERTOW_TOKEN"] = given
        cli.run("run", script)
        tokens.append(read_environments(cli, 1)[0]["UNDERTOW_TOKEN"])
    assert len(tokens[0]) == 32
    assert tokens[0] != tokens[1]
    assert tokens[2] == "mine"


def test_threads_are_limited_for_several_workers_only_and_it_is_said_once(cli: Cli) -> None:
    script = cli.write(SHOW_ENVIRONMENT)
    assert cli.run("run", "-n", 2, script).stderr.count("OMP_NUM_THREADS") == 1
    assert cli.run("run", script).stderr == ""
    assert "OMP_NUM_THREADS" not in read_environments(cli, 1)[0]
    cli.environment["OMP_NUM_THREADS"] = "5"
    assert cli.run("run", "-n", 2, script).stderr == ""
    assert read_environments(cli, 2)[1]["OMP_NUM_THREADS"] == "5"


def test_start_timeout_reaches_the_workers(cli: Cli) -> None:
    cli.run("run", "--start-timeout", 7.5, cli.write(SHOW_ENVIRONMENT))
    assert read_environments(cli, 1)[0]["UNDERTOW_START_TIMEOUT"] == "7.5"


def test_workers_can_meet_at_the_rendezvous(cli: Cli) -> None:
    script = cli.write("""
        from undertow.engine.coordinator.rendezvous import attend
        everybody = attend(
            os.environ["UNDERTOW_RENDEZVOUS"], os.environ["UNDERTOW_TOKEN"].encode(),
            name="test", rank=rank, size=3, payload=b"%d" % rank, timeout_s=30,
        )
        mark(f"met{rank}", everybody)
    """)
    assert cli.run("run", "-n", 3, script).returncode == 0
    assert [(cli.folder / f"met{rank}").read_text() for rank in range(3)] == ["[b'0', b'1', b'2']"] * 3


def test_the_masters_port_is_free_for_torchs_own_store(cli: Cli) -> None:
    script = cli.write("""
        import socket
        socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).close()
    """)
    assert cli.run("run", script).returncode == 0


def test_a_masters_port_in_use_is_wrong_usage(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = cli.run("run", "--master-port", port, cli.write(""))
    assert result.returncode == 2
    assert f"127.0.0.1:{port}: Address already in use" in result.stderr
    assert result.stderr.count("\n") == 1


def test_everything_after_the_script_belongs_to_the_script(cli: Cli) -> None:
    arguments = ["-n", "7", "--help", "--quiet-ranks", "--", "-x", "a b", "--under_score"]
    assert cli.run("run", "-n", 1, cli.write(SHOW_ENVIRONMENT), *arguments).returncode == 0
    assert read_environments(cli, 1)[0]["argv"] == arguments


def test_a_number_of_workers_after_the_script_is_pointed_out(cli: Cli) -> None:
    script = cli.write(SHOW_ENVIRONMENT)
    words = "-n after the script belongs to the script; 1 worker is started."
    assert (
        cli.run("run", script, "-n", 2).stderr == f"undertow: {words} Put it before {script} if you meant undertow's\n"
    )
    assert read_environments(cli, 1)[0]["argv"] == ["-n", "2"]
    assert cli.run("run", "-n", 1, script, "-n", 2).stderr == ""


def test_what_the_launcher_logs_is_a_notice(cli: Cli) -> None:
    script = cli.write("""
        import socket
        host, _, port = os.environ["UNDERTOW_RENDEZVOUS"].rpartition(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(bytes(1000))
            try:
                while sock.recv(1000):
                    pass
            except ConnectionResetError:
                pass
    """)
    result = cli.run("run", script)
    assert (result.returncode, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.startswith("undertow: 127.0.0.1:")
    assert "refused a connection" in result.stderr


@pytest.mark.parametrize("flag", ["-n", "--nproc-per-node", "--nproc_per_node"])
def test_the_number_of_workers_has_torchruns_spellings(cli: Cli, flag: str) -> None:
    cli.run("run", flag, 2, cli.write(SHOW_ENVIRONMENT))
    assert read_environments(cli, 2)[1]["WORLD_SIZE"] == "2"


def test_a_module_can_be_run(cli: Cli) -> None:
    cli.write(SHOW_ENVIRONMENT, "some_module.py")
    cli.environment["PYTHONPATH"] = os.pathsep.join([str(cli.folder), cli.environment.get("PYTHONPATH", "")])
    assert cli.run("run", "-m", "some_module", "--lr", "1").returncode == 0
    assert read_environments(cli, 1)[0]["argv"] == ["--lr", "1"]


def test_lines_are_prefixed_and_streams_stay_apart(cli: Cli) -> None:
    script = cli.write("""
        print("to stdout", end="", flush=True)
        print(", rank", rank)
        print("to stderr", file=sys.stderr)
    """)
    cli.environment["OMP_NUM_THREADS"] = "1"
    result = cli.run("run", "-n", 2, script)
    assert sorted(result.stdout.splitlines()) == ["[rank 0] to stdout, rank 0", "[rank 1] to stdout, rank 1"]
    assert sorted(result.stderr.splitlines()) == ["[rank 0] to stderr", "[rank 1] to stderr"]


def test_quiet_ranks_shows_rank_0_as_it_is(cli: Cli) -> None:
    script = cli.write(r"""
        sys.stdout.buffer.write(b"10%%\r20%%\r\xff no end from %d" % rank)
    """)
    process = cli.start("run", "-n", 3, "--quiet-ranks", script, text=False, errors=None)
    out, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert out == b"10%\r20%\r\xff no end from 0"


def test_quiet_ranks_still_shows_the_error_of_a_failing_rank(cli: Cli) -> None:
    script = cli.write("""
        print("chatter", file=sys.stderr)
        if rank == 1:
            raise ValueError("broken")
    """)
    result = cli.run("run", "-n", 2, "--quiet-ranks", script)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "ValueError: broken"
    assert result.stderr.count("ValueError: broken") == 1
    assert "[rank" not in result.stderr


def test_megabytes_arrive_unharmed(cli: Cli) -> None:
    script = cli.write(r"""
        line = bytes(byte for byte in range(256) if byte not in b"\r\n")
        for number in range(8000):
            sys.stdout.buffer.write(b"%d %s\n" % (number, line))
            sys.stderr.buffer.write(b"%d %s\n" % (number, line))
        sys.stdout.buffer.write(b"x" * 5_000_000)
    """)
    process = cli.start("run", "-n", 2, script, text=False, errors=None)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    line = bytes(byte for byte in range(256) if byte not in b"\r\n")
    for rank in range(2):
        prefix = b"[rank %d] " % rank
        mine = [text.removeprefix(prefix) for text in out.split(b"\n") if text.startswith(prefix)]
        assert mine == [*(b"%d %s" % (number, line) for number in range(8000)), b"x" * 5_000_000]
        assert err.count(prefix) == 8000


def test_a_reader_that_goes_away_does_not_stop_the_training(cli: Cli) -> None:
    script = cli.write("""
        for number in range(20000):
            print("line", number)
        mark("done")
    """)
    process = cli.start("run", script)
    process.stdout.close()
    assert process.wait(HANG_S) == 0
    assert (cli.folder / "done").exists()


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, "failed first: exit code 3"),
        ("raise ValueError", 1, "failed first: exit code 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "failed first: killed by SIGKILL; out of memory?"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "failed first: killed by SIGSEGV"),
    ],
)
def test_exit_code_is_that_of_the_worker(cli: Cli, source: str, code: int, words: str) -> None:
    result = cli.run("run", cli.write(source))
    assert result.returncode == code
    assert words in result.stderr


def run_on_a_terminal(cli: Cli, *arguments: object) -> tuple[int, str]:
    """The exit code, and everything that the terminal got to see."""
    reader, writer = pty.openpty()
    cli.environment["TERMINAL"] = os.ttyname(writer)
    process = cli.start("run", *arguments, stdin=writer, stdout=writer, stderr=writer)
    os.close(writer)
    seen = bytearray()
    while True:
        try:
            seen += os.read(reader, 1 << 16)
        except OSError:  # all writers have gone
            break
    os.close(reader)
    return process.wait(HANG_S), seen.decode()


def test_prefixes_are_coloured_on_a_terminal(cli: Cli) -> None:
    script = cli.write("print('hello')")
    assert "[rank 0] \x1b[0mhello" in run_on_a_terminal(cli, script)[1]
    cli.environment["NO_COLOR"] = "1"
    assert "\x1b" not in run_on_a_terminal(cli, script)[1]


def test_with_quiet_ranks_rank_0_has_the_terminal_for_its_progress_bar(cli: Cli) -> None:
    script = cli.write("""
        mark(f"terminal{rank}", [sys.stdout.isatty(), sys.stderr.isatty()])
        if rank == 0:
            assert os.ttyname(1) == os.environ["TERMINAL"], "a copy would not follow the window's size"
            raise ValueError("broken")
    """)
    code, seen = run_on_a_terminal(cli, "-n", 2, "--quiet-ranks", script)
    assert [(cli.folder / f"terminal{rank}").read_text() for rank in range(2)] == ["[True, True]", "[False, False]"]
    assert code == 1
    assert "failed first: exit code 1" in seen
    assert seen.split("failed first")[1].rstrip().endswith("ValueError: broken")


def test_only_the_first_worker_reads_stdin(cli: Cli) -> None:
    script = cli.write("mark(f'read{rank}', sys.stdin.read())")
    reader, writer = os.pipe()
    os.write(writer, b"typed")
    os.close(writer)
    assert cli.finish(cli.start("run", "-n", 2, script, stdin=reader)).returncode == 0
    os.close(reader)
    assert [(cli.folder / f"read{rank}").read_text() for rank in range(2)] == ["typed", ""]


def test_children_that_outlive_a_good_run_neither_hang_it_nor_stay(cli: Cli) -> None:
    script = cli.write("""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        mark("child", child.pid)
    """)
    assert cli.run("run", script).returncode == 0
    child = int((cli.folder / "child").read_text())
    wait_until(lambda: not is_alive(child))
