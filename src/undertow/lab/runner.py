"""The story of one `undertow lab run`: hosts up, links checked, one worker on each.

In: a checked `LabJob`.  Out: an exit code, as of `undertow run`; no trace of the hosts is left.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from undertow.errors import ConfigError
from undertow.lab.bandwidth import format_bandwidth
from undertow.lab.isolation import find_obstacle, run_isolated
from undertow.lab.link_check import check_links
from undertow.lab.meeting import open_meeting
from undertow.lab.network import Network, check_size, open_loopback, open_network
from undertow.launch.failure import decide
from undertow.launch.job import RUNNER, check_live_port, read_job_settings
from undertow.launch.launcher import supervise
from undertow.launch.speech import notify, say, speak_for_the_log
from undertow.launch.traces import clear_traces, conclude_traces
from undertow.launch.worker import Post
from undertow.live.opening import watch as watch_job
from undertow.watch import OpenWatch, Watch, open_nobody

if TYPE_CHECKING:
    from undertow.live.show import Show

# More numbers than this do not fit in a line.
LISTED_HOSTS = 8


@dataclass(frozen=True, kw_only=True)
class LabJob:
    """One command on every host of a lab."""

    command: tuple[str, ...]
    hosts: int
    rate_bits_per_s: float | None = None  # None: as fast as this machine can
    is_unshaped: bool = False  # loopback instead of emulated hosts
    is_checked: bool = True
    start_timeout_s: float = 120.0
    quiet_ranks: bool = False
    live: bool = False  # a dashboard in place of the output
    live_port: int | None = None  # and a page; 0: at any free port
    title: str = ""  # what they call the job

    def __post_init__(self) -> None:
        check_size(self.hosts)
        check_live_port(self.live_port)


def find_command(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """What to start: a Python file with this Python, anything else as a shell would find it."""
    name = words[0]
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise ConfigError(f"script {name!r} is not there; give the path of a Python file, or a command")
        return (sys.executable, "-u", *RUNNER, *words)
    found = shutil.which(name, path=environ.get("PATH"))
    if found is None:
        raise ConfigError(f"command {name!r} is not found; give a Python file, or a command that is in PATH")
    return (found, *words[1:])


def run_in_lab(job: LabJob, environ: Mapping[str, str], open_watch: OpenWatch = open_nobody) -> int:
    """Run the job; returns the code to exit with.  Somebody may watch until its workers start."""
    speak_for_the_log()
    if job.is_unshaped:
        with watch_job(job.title, environ, live=job.live, port=job.live_port) as (show, own):
            return _run(job, own, open_loopback(job.hosts), open_watch, show=show)
    if obstacle := find_obstacle():
        raise ConfigError(f"{obstacle}; or use --unshaped: no emulated hosts, everything over loopback")
    # Out here: a browser is not in the lab.
    with watch_job(job.title, environ, live=job.live, port=job.live_port) as (show, own):
        return run_isolated(lambda: _run(job, own, open_network(job.hosts), open_watch, show=show))


def _run(
    job: LabJob,
    environ: Mapping[str, str],
    opening: AbstractContextManager[Network],
    open_watch: OpenWatch,
    *,
    show: Show | None,
) -> int:
    settings = read_job_settings(environ)
    clear_traces(settings)
    try:
        with opening as network:
            with open_watch() as watch:
                links = _prepare(network, job, watch)
            notify(links)
            before = [counters.bytes_out for counters in network.counters()]

            def conclude() -> None:
                sent = [counters.bytes_out for counters in network.counters()]
                notify(describe_traffic([now - then for now, then in zip(sent, before, strict=True)], network))
                conclude_traces(settings, notify)

            posts = _posts(network, job, environ)
            return supervise(posts, quiet_ranks=job.quiet_ranks, conclude=conclude, show=show)
    except KeyboardInterrupt:
        verdict = decide([], interrupted_by=signal.SIGINT)
        say(*verdict.lines)
        return verdict.exit_code


def _prepare(network: Network, job: LabJob, watch: Watch) -> str:
    """Shape and check the links; returns what they are now, in words."""
    hosts = "1 host" if job.hosts == 1 else f"{job.hosts} hosts"
    if not network.is_shaped:
        useless = "" if job.rate_bits_per_s is None else ", so --bandwidth has no effect"
        return f"{hosts} on this machine's loopback: nothing is shaped{useless}"
    if job.rate_bits_per_s is None:
        return f"{hosts}, links as fast as this machine can (no --bandwidth)"
    network.shape(job.rate_bits_per_s)
    what = f"{hosts}, {format_bandwidth(job.rate_bits_per_s)} each way"
    if not job.is_checked:
        return f"{what}, not checked"
    watch.say("checking the links")
    watch.expect(job.hosts)
    return f"{what}, checked ({100 * check_links(network, job.rate_bits_per_s, watch):.1f} % of nominal)"


@contextmanager
def _posts(network: Network, job: LabJob, environ: Mapping[str, str]) -> Iterator[list[Post]]:
    with open_meeting(network, environ, start_timeout_s=job.start_timeout_s) as environments:
        yield [
            Post(
                command=job.command,
                environment=environment,
                host=host.name,
                has_stdin=host.index == 0,
                entered=host.entered,
            )
            for host, environment in zip(network.hosts, environments, strict=True)
        ]


def describe_traffic(sent_bytes: Sequence[int], network: Network) -> str:
    """What every host has sent, in words."""
    if not network.is_shaped:
        return f"this machine's loopback carried {_megabytes(sum(sent_bytes))}, by the kernel's count"
    if len(sent_bytes) > LISTED_HOSTS:
        extremes = f"{_megabytes(min(sent_bytes))} to {_megabytes(max(sent_bytes))}"
        return f"sent, by the kernel's count: {extremes} per host, {_megabytes(sum(sent_bytes))} in all"
    each = (f"{host.name} {_megabytes(count)}" for host, count in zip(network.hosts, sent_bytes, strict=True))
    return f"sent, by the kernel's count: {', '.join(each)}"


def _megabytes(count_bytes: int) -> str:
    return f"{count_bytes / 1e6:.3f} MB" if count_bytes < 1e6 else f"{count_bytes / 1e6:.1f} MB"
