"""The example of the README, run as it is printed there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.command import Cli

ROOT = Path(__file__).parents[2]
SAMPLES, BATCH = 2048, 32

# What this worker is handed in one more epoch, and whether its replica is like the others.
EPILOGUE = """
undertow.torch.verify_replicas(model)
seen = [row[0].item() for inputs, labels in loader for row in inputs]
import pathlib
pathlib.Path(__file__).with_name(f"seen-{undertow.rank()}").write_text(" ".join(map(repr, seen)))
undertow.shutdown()
"""


def read_example() -> str:
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return str(example)


@pytest.mark.parametrize("workers", [2, 4])
def test_the_example_shards_its_data_and_keeps_replicas_alike(cli: Cli, workers: int) -> None:
    script = cli.folder / "train.py"
    script.write_text(read_example() + EPILOGUE)
    ended = cli.run("run", "-n", workers, script)
    assert ended.returncode == 0, ended.stderr
    steps = SAMPLES // BATCH // workers
    for rank in range(workers):
        assert f"rank {rank} of {workers}: {steps} steps per epoch, loss " in ended.stdout
    seen = [(cli.folder / f"seen-{rank}").read_text().split() for rank in range(workers)]
    assert [len(part) for part in seen] == [SAMPLES // workers] * workers
    assert len({number for part in seen for number in part}) == SAMPLES  # no sample twice, none left out


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120
