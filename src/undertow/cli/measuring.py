"""Runs a measurement in the lab for a command: isolated, with progress, and with its results even if it breaks off.

In: a function that measures, a function that shows the results.  Out: the command's exit code.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from undertow.cli.errors import FAILED_RUN
from undertow.cli.progress import open_progress
from undertow.cli.results import read_command_line
from undertow.errors import ConfigError
from undertow.launch.launcher_output import notify, print_lines
from undertow.progress import Progress
from undertow.tools.lab.bench.bench import BenchAborted, OpenNetwork
from undertow.tools.lab.isolation import find_obstacle, run_isolated
from undertow.tools.lab.network import open_loopback, open_network

Results_co = TypeVar("Results_co", covariant=True)


class Measure(Protocol[Results_co]):
    """A function that measures; if it cannot finish, it raises `BenchAborted` with the results so far."""

    def __call__(
        self, *, environ: Mapping[str, str], open_network: OpenNetwork, progress: Progress, command: str
    ) -> Results_co: ...


def measure_in_lab(
    name: str, measure: Measure[Results_co], show: Callable[[Results_co], None], *, is_unshaped: bool
) -> int:
    """Run a measurement on emulated hosts or over loopback, and show its results, even if they are incomplete."""

    def run() -> int:
        signal.signal(signal.SIGTERM, _interrupt)
        command = read_command_line()
        open_hosts = open_loopback if is_unshaped else open_network
        code, reason = 0, ""
        with open_progress() as progress:
            try:
                results = measure(environ=os.environ, open_network=open_hosts, progress=progress, command=command)
            except BenchAborted as error:
                results, reason, code = error.results, str(error), FAILED_RUN
        show(results)
        if reason:
            print_lines(f"{name}: {reason}")
        return code

    if is_unshaped:
        notify("nothing is shaped: all hosts share this machine's loopback, and every figure is marked as unshaped")
        return run()
    if obstacle := find_obstacle():
        raise ConfigError(f"{obstacle}. To measure without emulated hosts, add --unshaped")
    return run_isolated(run)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
