"""What an error of ours looks like to a user: one line on stderr and an exit code."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from undertow.errors import ConfigError, UndertowError
from undertow.launch.speech import say

FAILED_RUN = 1
USAGE_ERROR = 2

_CURES = {
    errno.EMFILE: "; allow more with: ulimit -n 4096",
    errno.EAGAIN: "; more processes may be allowed with: ulimit -u",
}


@contextmanager
def one_line_errors(command: str, *, debug: bool) -> Iterator[None]:
    """An error inside of the block ends the command with one line; with `debug` it is shown in full."""
    try:
        yield
    except (UndertowError, OSError) as error:
        if debug:
            raise
        say(f"{command}: {_explain(error)}")
        raise typer.Exit(USAGE_ERROR if isinstance(error, ConfigError) else FAILED_RUN) from None


def _explain(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    cure = _CURES.get(error.errno or 0, "")
    reason = f"[Errno {error.errno}] {error.strerror}" if cure else error  # no file is to blame
    return f"the job cannot be run on this host: {reason}{cure}"
