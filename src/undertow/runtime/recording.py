"""Recording of this process's trace events, for a trace file and the live view.

In: settings, the first group.  Out: a recorder that is on before the group is formed, so that clocks are compared while
the links are idle; a trace file, if the user wants one, once the group is formed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from undertow.engine.client.group import ConnectedGroup
from undertow.errors import ConfigError
from undertow.observe.meter.status_sender import StatusSender, open_sender
from undertow.observe.trace.chrome import TraceHeader
from undertow.observe.trace.pump import EventPump
from undertow.observe.trace.trace_file import TraceFile
from undertow.release import __version__
from undertow.settings import Settings
from undertow.tracing.recorder import process_recorder
from undertow.tracing.window import parse_window

_pump: EventPump | None = None
_sender: StatusSender | None = None  # set if the launcher shows the job live


def prepare(settings: Settings) -> None:
    """Switch the recorder on before a group is formed."""
    if (settings.trace or settings.live) and _pump is None:
        process_recorder.start()


def give_up() -> None:
    """Switch the recorder off, because the group could not be formed."""
    if _pump is None:
        process_recorder.is_on = False


def begin(settings: Settings, group: ConnectedGroup) -> None:
    """Open the trace file and the connection to the live view, once the first group is formed."""
    global _pump, _sender
    if _pump is None and (settings.trace or settings.live):
        _pump = EventPump(process_recorder)
        if settings.trace:
            _open_file(settings, group, _pump)
        if settings.live:
            _sender = open_sender(settings.live, process_recorder, rank=group.rank, local_rank=settings.local_rank)
            _pump.add(_sender)
    if _sender is not None:
        _sender.use_group(group)


def _open_file(settings: Settings, group: ConnectedGroup, pump: EventPump) -> None:
    header = TraceHeader(
        rank=group.rank,
        world_size=group.size,
        host=group.shape.hosts[group.rank],
        version=__version__,
        script=sys.argv[0],
        started=group.shape.identity,
    )
    window = parse_window(settings.trace_steps)
    try:
        trace = TraceFile(Path(settings.trace), header, window, lambda: pump.remove(trace))
    except OSError as error:
        raise ConfigError(f"the trace cannot be written to {settings.trace}: {error.strerror}") from None
    pump.add(trace)


def announce_end() -> None:
    """Report to the live view that this process is about to leave its groups."""
    if _sender is not None:
        _sender.announce_end()


def end() -> None:
    """Write the remaining events.  A second call does nothing."""
    global _pump, _sender
    if _pump is not None:
        _pump.close()
        _pump = _sender = None


def abandon() -> None:
    """Stop recording in a forked child, because the parent writes the trace."""
    global _pump, _sender
    process_recorder.is_on = False
    _pump = _sender = None
