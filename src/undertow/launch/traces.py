"""Trace folder of a job: cleared by the launcher at the start, merged into one file for viewers at the end.

In: the settings of the workers.  Out: a folder without traces of earlier jobs, with this job's `trace.json`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from undertow.errors import ConfigError
from undertow.observe.trace.merging import MERGED, find_files, merge
from undertow.settings import Settings
from undertow.units import format_quantity

# The first bytes of every trace file that undertow writes.
_OURS = b'[\n{"ph":"M","name":"process_name"'


def clear_traces(settings: Settings) -> None:
    """Create the folder, and remove the traces of an earlier job, which may have had more workers."""
    if not settings.trace:
        return
    folder = Path(settings.trace)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in [*find_files(folder).values(), folder / MERGED]:
            if not path.is_file():
                continue
            with path.open("rb") as file:
                is_ours = file.read(len(_OURS)) == _OURS
            if is_ours:
                path.unlink()
    except OSError as error:
        raise ConfigError(f"the trace cannot be written to {folder}: {error.strerror}") from None


def conclude_traces(settings: Settings, notify: Callable[[str], None]) -> None:
    """Merge the traces of this host's workers into one file, and tell the user where it is."""
    if not settings.trace:
        return
    folder = Path(settings.trace)
    try:
        merged = merge(folder)
    except OSError as error:
        notify(f"the traces in {folder} could not be merged for viewers: {error.strerror}")
        return
    if merged is None:
        notify(f"there is no trace in {folder}: no worker got as far as starting undertow")
        return
    notify(describe_trace(format_quantity(len(find_files(folder)), "rank"), folder))


def describe_trace(subject: str, folder: Path) -> str:
    """Return a line that tells the user where a merged trace is, and how to read it."""
    return (
        f"the trace of {subject} is {folder / MERGED}, for ui.perfetto.dev; "
        f"read it with: undertow report {shlex.quote(str(folder))}"
    )
