"""What commands that measure in the lab have in common: isolation, progress, and what is kept if it is broken off.

In: something that measures, something that shows its results.  Out: the command's exit code.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from undertow.cli.errors import FAILED_RUN
from undertow.cli.progress import open_watch
from undertow.errors import ConfigError
from undertow.lab.bench.bench import BrokenOff, OpenNetwork
from undertow.lab.isolation import find_obstacle, run_isolated
from undertow.lab.network import open_loopback, open_network
from undertow.launch.speech import notify, say
from undertow.watch import Watch

Results_co = TypeVar("Results_co", covariant=True)


class Measure(Protocol[Results_co]):
    """Raises `BrokenOff` with the results so far if something fails on the way."""

    def __call__(
        self, *, environ: Mapping[str, str], open_network: OpenNetwork, watch: Watch, command: str
    ) -> Results_co: ...


def measure_in_lab(
    name: str, measure: Measure[Results_co], show: Callable[[Results_co], None], *, is_unshaped: bool
) -> int:
    """Run this measurement on emulated hosts, or over loopback, and show what came of it, whole or not."""

    def run() -> int:
        signal.signal(signal.SIGTERM, _interrupt)
        command = shlex.join(["undertow", *sys.argv[1:]])
        open_hosts = open_loopback if is_unshaped else open_network
        code, reason = 0, ""
        with open_watch() as watch:
            try:
                results = measure(environ=os.environ, open_network=open_hosts, watch=watch, command=command)
            except BrokenOff as error:
                results, reason, code = error.results, str(error), FAILED_RUN
        show(results)
        if reason:
            say(f"{name}: {reason}")
        return code

    if is_unshaped:
        notify("nothing is shaped: all hosts are this machine's loopback, and every figure is marked so")
        return run()
    if obstacle := find_obstacle():
        raise ConfigError(f"{obstacle}. Without emulated hosts: --unshaped")
    return run_isolated(run)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
