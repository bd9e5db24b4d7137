"""Recorded events of one process, as facts about a step."""

from __future__ import annotations

from undertow.engine.core.frames import Kind
from undertow.tracing import events
from undertow.tracing.recorder import process_recorder


def list_events() -> list[tuple[float, str]]:
    """Return gradients by the name of their tensor, and what was sent and resulted, in chronological order."""
    found: list[tuple[float, str]] = []
    for event in process_recorder.events():
        match event:
            case events.Hooked(began_s, _, tensor):
                found.append((began_s, tensor))
            case events.Sent(time_s=time_s):
                found.append((time_s, "sent"))
            case events.Summed(_, ended_s) | events.Received(_, ended_s, kind=Kind.RESULT):
                found.append((ended_s, "result"))
    return sorted(found)


def has_result() -> bool:
    """Whether the result of a round is here: from this rank's own shard, or from another's."""
    return any(what == "result" for _, what in list_events())
