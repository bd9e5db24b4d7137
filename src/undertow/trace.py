"""A record of what each stage did, in order: to look at, and to prove things with.

Off, it costs one look at `is_on` per event.  On, every event is kept in memory with
its time; `write` puts them into a file, one JSON object per line.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

is_on = False
_events: list[dict[str, Any]] = []


def start() -> None:
    """Begin a new record."""
    global is_on
    _events.clear()
    is_on = True


def stop() -> list[dict[str, Any]]:
    """End the record; returns its events, the first one first."""
    global is_on
    is_on = False
    return list(_events)


def record(event: str, **what: Any) -> None:
    """Keep one event.  From any thread: appending to a list is atomic."""
    _events.append({"event": event, "time_s": time.monotonic(), **what})


def events() -> list[dict[str, Any]]:
    return list(_events)


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events()))
