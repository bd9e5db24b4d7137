"""Errors of commands, shown to the user as one line on stderr and an exit code."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from undertow.errors import ConfigError, UndertowError
from undertow.launch.launcher_output import print_lines

FAILED_RUN = 1
USAGE_ERROR = 2

_CURES = {
    errno.EMFILE: "; allow more with: ulimit -n 4096",
    errno.EAGAIN: "; more processes may be allowed with: ulimit -u",
}


def show_help(context: typer.Context) -> None:
    """Show the help of a group of commands and exit, if no command was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(USAGE_ERROR)


@contextmanager
def one_line_errors(command: str, *, debug: bool) -> Iterator[None]:
    """End the command with a one-line message if the block raises an expected error; with `debug`, raise the error."""
    try:
        yield
    except (UndertowError, OSError) as error:
        if debug:
            raise
        print_lines(f"{command}: {_explain(error)}")
        raise typer.Exit(USAGE_ERROR if isinstance(error, ConfigError) else FAILED_RUN) from None


def _explain(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    cure = _CURES.get(error.errno or 0, "")
    reason = f"[Errno {error.errno}] {error.strerror}" if cure else error  # without the file, which is not the cause
    return f"the job cannot be run on this host: {reason}{cure}"
