"""Which module a script finds that imports Horovod."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Cli
from tests.support.script_runs import Runs

ASK = """
    try:
        import horovod.torch
    except ImportError:
        print("found nothing")
    else:
        print("found", getattr(horovod.torch, "MARK", horovod.torch.__name__))
"""


@pytest.mark.parametrize(
    ("is_installed", "options", "found"),
    [
        (False, [], "undertow.horovod.torch"),
        (True, [], "another one"),
        (True, ["--horovod", "on"], "undertow.horovod.torch"),
        (True, ["--horovod", "off"], "another one"),
        (False, ["--horovod", "off"], "nothing"),
    ],
)
def test_horovod_is_ours_unless_it_is_there(
    is_installed: bool, options: list[str], found: str, cli: Cli, tmp_path: Path
) -> None:
    if is_installed:
        (tmp_path / "horovod").mkdir()
        (tmp_path / "horovod" / "__init__.py").touch()
        (tmp_path / "horovod" / "torch.py").write_text("MARK = 'another one'")
    result = cli.run("run", "--quiet-ranks", *options, cli.write(ASK))
    assert result.stdout == f"found {found}\n"


LOADING = """
    import horovod.torch as hvd
    import torch

    def first(index):
        import horovod
        print("worker finds", horovod.__name__, os.environ["HOROVOD_RANK"], flush=True)

    if __name__ == "__main__":
        hvd.init()
        options = {"worker_init_fn": first, "multiprocessing_context": sys.argv[1]}
        list(torch.utils.data.DataLoader(range(4), num_workers=1, **options))
        hvd.barrier()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_that_load_data_find_it_too(method: str, cli: Cli) -> None:
    result = cli.run("run", "-n", 2, cli.write(LOADING), method)
    seen = sorted(result.stdout.splitlines())
    assert seen == [f"[rank {rank}] worker finds undertow.horovod {rank}" for rank in (0, 1)], result.stderr


def test_a_script_for_horovod_runs_as_it_is(tmp_path: Path) -> None:
    run = Runs(tmp_path).run("horovod_classic.py", "-n", 2)
    assert run.lines[-1].startswith("final loss ")
    assert all(run.count("hook"))
    assert len(run.traces) == 2
