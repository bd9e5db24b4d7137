"""The traces of a job, as its launcher sees them: the folder before, one file for viewers afterwards.

In: the settings of the workers.  Out: no traces of an earlier job, and `trace.json` of this one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from undertow.errors import ConfigError
from undertow.settings import Settings
from undertow.trace.merging import MERGED, find_files, merge

# How each of ours begins.
_OURS = b'[\n{"ph":"M","name":"process_name"'


def clear_traces(settings: Settings) -> None:
    """Make the folder, and take away what an earlier job of more workers would leave in it."""
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
    """Put the traces of this host's workers together, and say where they are."""
    if not settings.trace:
        return
    folder = Path(settings.trace)
    try:
        merged = merge(folder)
    except OSError as error:
        notify(f"the traces in {folder} are not put together for viewers: {error.strerror}")
        return
    if merged is None:
        notify(f"there is no trace in {folder}: no worker has come as far as undertow")
        return
    ranks = len(find_files(folder))
    notify(
        f"the trace of {'1 rank' if ranks == 1 else f'{ranks} ranks'} is {merged}, for ui.perfetto.dev; "
        f"read it with: undertow report {shlex.quote(str(folder))}"
    )
