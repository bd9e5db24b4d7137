"""`undertow share`: the arbiter of this host, what it sees, and jobs that are started together."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from undertow import bounds
from undertow.cli.errors import FAILED_RUN, USAGE_ERROR, one_line_errors
from undertow.cli.figures import figure
from undertow.cli.progress import open_console
from undertow.cli.share_bench import bench
from undertow.cli.share_views import open_json_view, open_view
from undertow.crossover import arbiter
from undertow.crossover.contact import ask_status, stop
from undertow.crossover.place import find_socket
from undertow.crossover.turns import LEASE_S
from undertow.errors import UndertowError
from undertow.launch.arbiters import check_place, find_log, start_arbiter
from undertow.launch.job import read_job_settings
from undertow.launch.job_file import read_jobs
from undertow.launch.shared_jobs import run_together
from undertow.launch.speech import say
from undertow.plain_text import clean_lines
from undertow.report.sharing import describe_arbiter, make_summary

share = typer.Typer(add_completion=False, rich_markup_mode="rich")

_Socket = Annotated[
    str | None,
    typer.Option("--socket", help="Where the arbiter is; else UNDERTOW_SHARE_SOCKET, else one per user.", metavar="S"),
]
_Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@share.callback(invoke_without_command=True)
def _share(context: typer.Context) -> None:
    """Let several jobs share the devices of this host: one computes while another waits for the network.

    Example: undertow share up; undertow run --share -n 2 train.py (and another in a second terminal)

    Example: undertow share run first.toml second.toml
    """
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(USAGE_ERROR)


@share.command("up")
def up(
    lease: Annotated[
        float,
        figure("--lease", bounds=bounds.LEASE_S, help="Seconds after which a turn that is not given back passes on."),
    ] = LEASE_S,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Be the arbiter, until Ctrl-C or SIGTERM (for systemd).")
    ] = False,
    socket: _Socket = None,
    debug: _Debug = False,
) -> int:
    """Start the arbiter of this host, which hands out the turns to compute.

    Example: undertow share up --lease 10
    """
    with one_line_errors("undertow share up", debug=debug):
        path = _find_path(socket)
        check_place(path, lease)
        status = ask_status(path)
        if status is not None:
            other = "" if status.lease_s == lease else f" and not {lease:g}; to change it: undertow share down, then up"
            words = f"an arbiter is up already: {describe_arbiter(status, path)}{other}"
            if foreground:
                raise UndertowError(words)
            print(clean_lines(words))
            return 0
        if foreground:
            return _be_the_arbiter(path, lease)
        started = start_arbiter(path, lease)
        print(clean_lines(f"the arbiter is up: {describe_arbiter(started.status, path)}; log: {find_log(path)}"))
        return 0
    raise AssertionError("one_line_errors ends the command")


@share.command("status")
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As the arbiter says it, one line of JSON.")] = False,
    socket: _Socket = None,
    debug: _Debug = False,
) -> int:
    """Who shares the devices of this host, who computes, and what it is worth.

    Example: undertow share status --watch
    """
    with one_line_errors("undertow share status", debug=debug):
        path = _find_path(socket)
        opened = open_json_view() if as_json else open_view(path, is_watched=watch)
        with contextlib.suppress(KeyboardInterrupt), opened as view:
            while (seen := ask_status(path)) is not None:
                view.show(seen)
                if not watch:
                    return 0
                time.sleep(view.pause_s)
            say(f"undertow share status: no arbiter is up at {path}: start one with undertow share up")
            return FAILED_RUN
        return 0
    raise AssertionError("one_line_errors ends the command")


@share.command("down")
def down(socket: _Socket = None, debug: _Debug = False) -> int:
    """Stop the arbiter of this host; jobs that run go on without turns.

    Example: undertow share down
    """
    with one_line_errors("undertow share down", debug=debug):
        path = _find_path(socket)
        stopped = stop(path)
        if stopped is None:
            print(f"no arbiter is up at {path}: nothing to do")
            return 0
        names = sorted({job.name for device in stopped.devices for job in device.jobs})
        left = f"; without turns go on: {', '.join(names)}" if names else ""
        print(clean_lines(f"the arbiter, pid {stopped.pid}, is down{left}"))
        return 0
    raise AssertionError("one_line_errors ends the command")


@share.command("run")
def run(
    files: Annotated[list[Path], typer.Argument(help="One per job; see docs/crossover.md.", metavar="JOB.toml...")],
    socket: _Socket = None,
    debug: _Debug = False,
) -> int:
    """Start several jobs together, wait for all, and tell what each had of the devices.

    Exits with 0 if all succeed, else with the code of the first that fails; the others go on.

    Example: undertow share run first.toml second.toml
    """
    with one_line_errors("undertow share run", debug=debug):
        story = run_together(read_jobs(files, os.environ), _find_path(socket), os.environ)
        open_console().print(make_summary(story))
        return story.exit_code
    raise AssertionError("one_line_errors ends the command")


share.command("bench")(bench)


def _find_path(chosen: str | None) -> Path:
    # Absolute before its length is judged: whoever is told of it may be in another folder.
    given = chosen or read_job_settings(os.environ).share_socket
    return find_socket(os.path.abspath(given) if given else "")


def _be_the_arbiter(path: Path, lease_s: float) -> int:
    with contextlib.suppress(KeyboardInterrupt):
        arbiter.main([str(path), str(lease_s)])
    return 0
