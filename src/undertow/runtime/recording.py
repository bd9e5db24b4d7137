"""What is recorded of this process, and where that goes.

In: settings, the first group.  Out: the record is on before the group is formed, so that clocks are compared while the
links are idle; a file, if one was asked for, from when it is known who the others are.
"""

from __future__ import annotations

import sys
from pathlib import Path

from undertow import __version__
from undertow.errors import ConfigError
from undertow.live.sender import Sender, open_sender
from undertow.runtime.group import Group
from undertow.settings import Settings
from undertow.trace.chrome import About
from undertow.trace.file import TraceFile
from undertow.trace.recorder import here
from undertow.trace.scribe import Scribe
from undertow.trace.window import parse_window

_scribe: Scribe | None = None
_sender: Sender | None = None  # of pulses, if somebody watches the job


def prepare(settings: Settings) -> None:
    """A group is about to be formed."""
    if (settings.trace or settings.live) and _scribe is None:
        here.start()


def give_up() -> None:
    """It could not be formed."""
    if _scribe is None:
        here.is_on = False


def begin(settings: Settings, group: Group) -> None:
    """It is formed."""
    global _scribe, _sender
    if _scribe is None and (settings.trace or settings.live):
        _scribe = Scribe(here)
        if settings.trace:
            _open_file(settings, group, _scribe)
        if settings.live:
            _sender = open_sender(settings.live, here, rank=group.rank, local_rank=settings.local_rank)
            _scribe.add(_sender)
    if _sender is not None:
        _sender.travel_with(group)


def _open_file(settings: Settings, group: Group, scribe: Scribe) -> None:
    about = About(
        rank=group.rank,
        world_size=group.size,
        host=group.hosts[group.rank],
        version=__version__,
        script=sys.argv[0],
        started=group.identity,
    )
    window = parse_window(settings.trace_steps)
    try:
        trace = TraceFile(Path(settings.trace), about, window, lambda: scribe.remove(trace))
    except OSError as error:
        raise ConfigError(f"the trace cannot be written to {settings.trace}: {error.strerror}") from None
    scribe.add(trace)


def part() -> None:
    """The groups are about to be left."""
    if _sender is not None:
        _sender.part()


def end() -> None:
    """Write the rest; a second call does nothing."""
    global _scribe, _sender
    if _scribe is not None:
        _scribe.close()
        _scribe = _sender = None


def abandon() -> None:
    """In a forked child: the parent writes."""
    global _scribe, _sender
    here.is_on = False
    _scribe = _sender = None
