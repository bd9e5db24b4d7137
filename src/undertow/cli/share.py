"""`undertow share`: starts, shows and stops the arbiter of this host, and runs several jobs together."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.live import Live

from undertow import bounds
from undertow.cli.errors import FAILED_RUN, one_line_errors, show_help
from undertow.cli.options import Debug, option
from undertow.cli.progress import open_console
from undertow.cli.share_bench import bench
from undertow.crossover import arbiter
from undertow.crossover.contact import ask_status, stop
from undertow.crossover.messages import Status
from undertow.crossover.socket_path import find_socket
from undertow.crossover.turns import LEASE_S
from undertow.errors import UndertowError
from undertow.launch.arbiter_process import check_socket_path, find_log, start_arbiter
from undertow.launch.job import read_job_settings
from undertow.launch.job_file import read_jobs
from undertow.launch.launcher_output import print_lines
from undertow.launch.shared_jobs import run_together
from undertow.observe.report.sharing import describe_arbiter, make_status, make_summary
from undertow.plain_text import clean_json, clean_lines

share = typer.Typer(add_completion=False, rich_markup_mode="rich")

_Socket = Annotated[
    str | None,
    option(
        "--socket PATH", "Use the arbiter at this socket. Default: UNDERTOW_SHARE_SOCKET, else one arbiter per user."
    ),
]
_Lease = Annotated[
    float,
    option(
        "--lease S", "Pass a turn on to the next job if it is not given back within S seconds.", bounds=bounds.LEASE_S
    ),
]
_Foreground = Annotated[bool, option("--foreground", "Run the arbiter in this process, until Ctrl-C or SIGTERM.")]
_Watch = Annotated[
    bool, option("--watch", "Show it repeatedly, until Ctrl-C: every second, in a log file every 5 seconds.")
]
_Files = Annotated[
    list[Path], typer.Argument(help="Run the jobs in these files; see docs/crossover.md.", metavar="JOB.toml...")
]
REDRAW_S = 1.0
PRINT_S = 5.0  # in a log file


@share.callback(invoke_without_command=True)
def _share(context: typer.Context) -> None:
    """Share the devices of this host among several jobs: one computes while another waits for the network.

    Example: undertow share up; undertow run --share -n 2 train.py (and another in a second terminal)

    Example: undertow share run first.toml second.toml
    """
    show_help(context)


@share.command("up")
def up(
    lease: _Lease = LEASE_S,
    foreground: _Foreground = False,
    socket: _Socket = None,
    debug: Debug = False,
) -> int:
    """Start the arbiter of this host, which decides which job may compute.

    Example: undertow share up --lease 10
    """
    with one_line_errors("undertow share up", debug=debug):
        path = _find_path(socket)
        check_socket_path(path, lease)
        status = ask_status(path)
        if status is not None:
            other = (
                "" if status.lease_s == lease else f" and not {lease:g} s; to change it: undertow share down, then up"
            )
            notice = f"an arbiter is up already: {describe_arbiter(status, path)}{other}"
            if foreground:
                raise UndertowError(notice)
            print(clean_lines(notice))
            return 0
        if foreground:
            with contextlib.suppress(KeyboardInterrupt):
                arbiter.main([str(path), str(lease)])
            return 0
        started = start_arbiter(path, lease)
        print(clean_lines(f"the arbiter is up: {describe_arbiter(started.status, path)}; log: {find_log(path)}"))
        return 0


@share.command("status")
def status(
    watch: _Watch = False,
    as_json: Annotated[bool, option("--json", "Print the arbiter's status as one line of JSON.")] = False,
    socket: _Socket = None,
    debug: Debug = False,
) -> int:
    """Show which jobs share the devices of this host, which one computes, and what sharing gains.

    Example: undertow share status --watch
    """
    with one_line_errors("undertow share status", debug=debug):
        path = _find_path(socket)
        opened = _open_view(path, is_watched=watch, is_json=as_json)
        with contextlib.suppress(KeyboardInterrupt), opened as (show, pause_s):
            while (seen := ask_status(path)) is not None:
                show(seen)
                if not watch:
                    return 0
                time.sleep(pause_s)
            print_lines(f"undertow share status: no arbiter is up at {path}: start one with undertow share up")
            return FAILED_RUN
        return 0


@share.command("down")
def down(socket: _Socket = None, debug: Debug = False) -> int:
    """Stop the arbiter of this host; running jobs continue without turns.

    Example: undertow share down
    """
    with one_line_errors("undertow share down", debug=debug):
        path = _find_path(socket)
        stopped = stop(path)
        if stopped is None:
            print(f"no arbiter is up at {path}: nothing to do")
            return 0
        names = sorted({job.name for device in stopped.devices for job in device.jobs})
        left = f"; these jobs continue without turns: {', '.join(names)}" if names else ""
        print(clean_lines(f"the arbiter, pid {stopped.pid}, is down{left}"))
        return 0


@share.command("run")
def run(
    files: _Files,
    socket: _Socket = None,
    debug: Debug = False,
) -> int:
    """Start several jobs together, wait for all of them, and show how much device time each one used.

    Exits with 0 if all succeed, else with the code of the first job that fails; the other jobs continue.

    Example: undertow share run first.toml second.toml
    """
    with one_line_errors("undertow share run", debug=debug):
        result = run_together(read_jobs(files, os.environ), _find_path(socket), os.environ)
        open_console().print(make_summary(result))
        return result.exit_code


share.command("bench")(bench)


def _find_path(chosen: str | None) -> Path:
    # Workers may run in another folder, so the path is made absolute before its length is checked.
    given = chosen or read_job_settings(os.environ).share_socket
    return find_socket(os.path.abspath(given) if given else "")


@contextmanager
def _open_view(path: Path, *, is_watched: bool, is_json: bool) -> Iterator[tuple[Callable[[Status], None], float]]:
    """Yield a function that shows a status and the pause after it: JSON, one redrawn table, or a table each time."""
    console = open_console()
    if is_json:
        yield lambda status: print(clean_json(msgspec.json.encode(status)), flush=True), REDRAW_S
    elif is_watched and console.is_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
            yield lambda status: live.update(make_status(status, path), refresh=True), REDRAW_S
    else:
        yield lambda status: console.print(make_status(status, path)), PRINT_S
