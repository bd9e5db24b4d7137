"""Is this a trace that Perfetto opens as it is meant?  Its own processor is not to be had here: these are its rules.

In: the events of a file.  Out: what is wrong with them, in words.
After the JSON importer of Perfetto: spans of one thread must nest, every beginning of an asynchronous event
needs its end, an arrow's ends must lie inside of spans, and every number must be one.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]
SLACK_US = 0.0015  # times are rounded to a nanosecond, each for itself
_NEEDS = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "M": {"name", "pid", "args"},
    "b": {"name", "cat", "id", "pid", "ts"},
    "e": {"name", "cat", "id", "pid", "ts"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "t": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}


def read_events(path: Path) -> list[Event]:
    events = json.loads(path.read_text())
    assert isinstance(events, list)
    return events


def find_faults(events: Iterable[Event]) -> list[str]:
    events = list(events)
    return [
        *_check_fields(events),
        *_check_names(events),
        *_check_nesting(events),
        *_check_asynchronous(events),
        *_check_arrows(events),
    ]


def _check_fields(events: list[Event]) -> Iterator[str]:
    for event in events:
        phase = event.get("ph")
        if phase not in _NEEDS:
            yield f"unknown phase: {event}"
        elif missing := _NEEDS[phase] - event.keys():
            yield f"{missing} missing: {event}"
        for name in ("ts", "dur"):
            value = event.get(name, 0)
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                yield f"{name} is no time: {event}"
        for name in ("pid", "tid"):
            if not isinstance(event.get(name, 0), int):
                yield f"{name} is no number: {event}"


def _check_names(events: list[Event]) -> Iterator[str]:
    """Every process and lane that is used has a name."""
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    lanes = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] != "M"}
    yield from (f"process {pid} has no name" for pid in {pid for pid, _ in used} - processes)
    yield from (f"lane {lane} has no name" for lane in used - lanes)


def _check_nesting(events: list[Event]) -> Iterator[str]:
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append(event)
    for spans in lanes.values():
        spans.sort(key=lambda span: (span["ts"], -span["dur"]))
        around: list[Event] = []
        for span in spans:
            while around and _end(around[-1]) <= span["ts"] + SLACK_US:
                around.pop()
            if around and _end(span) > _end(around[-1]) + SLACK_US:
                yield f"{span} begins inside of {around[-1]} and ends outside"
            around.append(span)


def _check_asynchronous(events: list[Event]) -> Iterator[str]:
    begun: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for event in sorted((event for event in events if event["ph"] in "be"), key=lambda event: event["ts"]):
        key = event["pid"], event["cat"], event["id"], event["name"]
        if event["ph"] == "b":
            begun[key].append(event["ts"])
        elif not begun[key]:
            yield f"ends without a beginning: {event}"
        else:
            begun[key].pop()
    yield from (f"{key} never ends" for key, times in begun.items() if times)


def _check_arrows(events: list[Event]) -> Iterator[str]:
    spans = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[event["pid"], event["tid"]].append(event)
    starts = [event for event in events if event["ph"] == "s"]
    begun = {event["id"]: event["ts"] for event in starts}
    if len(begun) < len(starts):
        yield "two arrows have the same number"
    for event in events:
        if event["ph"] not in ("s", "t", "f"):
            continue
        if not isinstance(event["id"], int) or not 0 <= event["id"] < 1 << 53:
            yield f"an arrow without a number: {event}"  # a text would be read as a hexadecimal one, or not at all
        if event["id"] not in begun:
            yield f"an arrow from nowhere: {event}"
        elif event["ts"] < begun[event["id"]] - SLACK_US:
            yield f"an arrow that goes back in time: {event}"
        there = (span for span in spans[event["pid"], event["tid"]] if _holds(span, event["ts"]))
        if next(there, None) is None:
            yield f"an arrow that holds to nothing: {event}"


def _holds(span: Event, ts: float) -> bool:
    return bool(span["ts"] - SLACK_US <= ts <= _end(span) + SLACK_US)


def _end(span: Event) -> float:
    return float(span["ts"] + span["dur"])
