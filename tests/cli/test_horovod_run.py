"""`horovod.run` with real workers, and the variables that scripts for Horovod find."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.command import Cli, is_alive, wait_until

CALLER = """
    import horovod

    def reduce(base, scale=1):
        import horovod.torch as hvd
        import torch
        hvd.init()
        total = hvd.allreduce(torch.tensor([float(base + hvd.rank())]), op=hvd.Sum).item()
        return hvd.rank(), hvd.size(), total * scale, os.environ["HOROVOD_RANK"], os.environ["HOROVOD_LOCAL_SIZE"]

    print("results", horovod.run(reduce, args=(10,), kwargs={"scale": 2}, np=2))

    def fail():
        import horovod.torch as hvd
        import torch
        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("a defect")
        hvd.allreduce(torch.ones(3))

    try:
        horovod.run(fail, num_proc=2, hosts="localhost:2")
    except RuntimeError as error:
        print("error", str(error).splitlines()[0])
"""


@pytest.mark.parametrize("start", [["run", "--quiet-ranks"], []])
def test_a_function_runs_on_local_workers(cli: Cli, start: list[str]) -> None:
    cli.environment["RANK"] = "0"  # for the beginning of the script
    result = cli.run(*start, cli.write(CALLER))
    assert result.stdout.splitlines() == [
        "results [(0, 2, 42.0, '0', '2'), (1, 2, 42.0, '1', '2')]",
        "error horovod.run: rank 1 failed: KeyError: 'a defect'",
    ], result.stderr


WAITING = """
    import json
    from undertow.horovod.runner import run

    def wait():
        mark("worker-" + os.environ["RANK"], json.dumps([sys.argv[-1], os.getpid(), os.getppid()]))
        wait_for("never")

    run(wait, num_proc=2)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_caller_that_was_killed(cli: Cli, signum: signal.Signals) -> None:
    cli.environment["RANK"] = "0"
    caller = cli.start_python(cli.write(WAITING))
    seen = [json.loads(file.read_text()) for file in cli.wait_for_files("worker-*", 2)]
    folder, pids = Path(seen[0][0]), {pid for _, *pids in seen for pid in pids}
    assert folder.is_dir()
    assert len(pids) == 3
    caller.send_signal(signum)
    wait_until(lambda: not any(map(is_alive, pids)) and not folder.exists())


PLACE = """
    names = [name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")]
    print(*(os.environ.get("HORO" + "VOD_" + name, "-") for name in names))
"""


def test_horovod_variables_are_there_for_scripts_that_speak_of_it(cli: Cli) -> None:
    silent, speaking = cli.write(PLACE), cli.write("import horovod\n" + PLACE.replace("\n    ", "\n"), "speaking.py")
    seen = [
        sorted(cli.run("run", "-n", 2, "--plain", "off", *options, script).stdout.splitlines())
        for script, options in ((silent, []), (speaking, []), (silent, ["--horovod", "on"]))
    ]
    there = ["[rank 0] 0 2 0 2 0 1", "[rank 1] 1 2 1 2 0 1"]
    assert seen == [["[rank 0] - - - - - -", "[rank 1] - - - - - -"], there, there]
