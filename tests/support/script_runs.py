"""Runs of scripts that do not use undertow's API: their output and their traces."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.command import Cli
from tests.support.forked_scripts import SCRIPTS, run_alone, run_script
from tests.support.ports import free_port

SUPPORT = Path(__file__).parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@dataclass(frozen=True)
class Run:
    """One run of a script."""

    folder: Path  # the script's current folder
    lines: list[str]  # the output of rank 0
    traces: list[list[dict[str, Any]]]  # events of each rank that computed over our engine, see docs/trace.md

    @property
    def curve(self) -> list[float]:
        """The losses in the order of the output."""
        return [float(loss) for line in self.lines for loss in re.findall(r"loss ([\d.]+)", line)]

    def count(self, kind: str) -> list[int]:
        """Return the number of events of this kind on each rank."""
        return [sum(event.get("cat") == kind for event in trace) for trace in self.traces]

    def count_deferred(self) -> list[int]:
        """Count on each rank how often parameters were stepped when their gradients arrived, not in `step()`."""
        stepped = [[event["args"].get("stepped", False) for event in trace if "args" in event] for trace in self.traces]
        return list(map(sum, stepped))


class Runs:
    """A cache of runs: each is made once, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[object, Run] = {}

    def run(self, script: str, *options: object) -> Run:
        """Run `undertow run OPTIONS SCRIPT`."""
        return self.run_python("-m", "undertow", "run", "--quiet-ranks", *options, SCRIPTS / script)

    def run_over_torch(self, script: str, *options: object) -> Run:
        """Run the script with `undertow run`, but with torch's own wrapper, which sums the gradients."""
        own = ("--ddp", "off", SUPPORT / "torchs_own.py")
        return self.run_python("-m", "undertow", "run", "--quiet-ranks", *options, *own, SCRIPTS / script)

    def fork(self, script: str, size: int, **environment: str) -> Run:
        """Run the script without the launcher, in workers that have already imported torch: takes a tenth of the time.

        Not for torch's own wrapper: one of Gloo's threads and its destructor deadlock once in twenty runs.
        """
        key = ("fork", script, size, *environment.items())
        if key not in self._runs:
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            given |= {"UNDERTOW_TRACE": str(folder / "trace"), **environment}
            texts = run_script(size, folder, script, **given)
            self._runs[key] = Run(folder, texts[0].splitlines(), _read_traces(folder))
        return self._runs[key]

    def fork_alone(self, script: str) -> Run:
        """Run the script with Python and torch alone, in a worker that has already imported torch."""
        key = ("fork alone", script)
        if key not in self._runs:
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            self._runs[key] = Run(folder, run_alone(folder, script).splitlines(), [])
        return self._runs[key]

    def run_alone(self, script: str) -> Run:
        """Run the script with Python and torch alone, as the only rank of a job."""
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        return self.run_python(SCRIPTS / script, **alone)

    def run_python(self, *words: object, **environment: str) -> Run:
        """Run any Python command."""
        key = (words, *environment.items())
        if key not in self._runs:
            self._runs[key] = self._make(words, environment)
        return self._runs[key]

    def _make(self, words: Sequence[object], environment: Mapping[str, str]) -> Run:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        cli = Cli(folder)
        cli.environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        cli.environment |= {"UNDERTOW_TRACE": str(folder / "trace"), **environment}
        with cli.start_python(*words, cwd=folder, start_new_session=True) as process:
            try:
                result = cli.finish(process)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        assert result.returncode == 0, result.stderr
        return Run(folder, result.stdout.splitlines(), _read_traces(folder))


def _read_traces(folder: Path) -> list[list[dict[str, Any]]]:
    files = sorted((folder / "trace").glob("rank-*.json"))
    return [json.loads(file.read_text()) for file in files]
