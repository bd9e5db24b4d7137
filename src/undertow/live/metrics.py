"""The live view for Prometheus: the text format, version 0.0.4.

In: a picture of the job.  Out: text.
Of a rank that nothing was heard of yet only `undertow_rank_up` is there: a figure that is not known is not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from undertow.live.board import Picture, Row
from undertow.live.pulse import Pulse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Figure(NamedTuple):
    name: str
    kind: str
    meaning: str
    read: Callable[[Pulse], float]


_FIGURES = (
    _Figure("undertow_steps_total", "counter", "Synchronised backward passes so far.", lambda p: p.steps),
    _Figure("undertow_step_rate", "gauge", "Steps per second, of the last seconds.", lambda p: p.steps_per_s),
    _Figure("undertow_wait_seconds_total", "counter", "Time that the training stood still.", lambda p: p.waited_s),
    _Figure("undertow_wait_ratio", "gauge", "Part of the last seconds that it stood still.", lambda p: p.wait_share),
    _Figure("undertow_turn_ratio", "gauge", "Part that the device was another job's.", lambda p: p.turn_share),
    _Figure("undertow_bytes_out_total", "counter", "Bytes of slices sent.", lambda p: p.bytes_out),
    _Figure("undertow_bytes_in_total", "counter", "Bytes of slices received.", lambda p: p.bytes_in),
    _Figure("undertow_uptime_seconds", "gauge", "Since the worker joined the job.", lambda p: p.uptime_s),
)
_LINK = _Figure(
    "undertow_link_bytes_per_second", "gauge", "What the link carries each way.", lambda p: p.link_bytes_per_s
)
_LAYER = _Figure(
    "undertow_slowest_layer_seconds",
    "gauge",
    "Forward and backward of it, per step.",
    lambda p: p.layer_ms_per_step / 1e3,
)


def write_metrics(picture: Picture) -> str:
    return "".join(line + "\n" for line in _list_lines(picture))


def _list_lines(picture: Picture) -> Iterator[str]:
    yield from _explain("undertow_rank_up", "gauge", "1 while the worker runs and is heard of.")
    for row in picture.rows:
        yield f"undertow_rank_up{_label(row)} {int(row.is_up and not row.is_alarming and row.pulse is not None)}"
    rows = [(row, row.pulse) for row in picture.rows if row.pulse is not None]
    for figure in _FIGURES:
        yield from _explain(figure.name, figure.kind, figure.meaning)
        yield from (f"{figure.name}{_label(row)} {figure.read(pulse):.12g}" for row, pulse in rows)
    yield from _explain(_LINK.name, _LINK.kind, _LINK.meaning)
    yield from (f"{_LINK.name}{_label(row)} {_LINK.read(p):.12g}" for row, p in rows if p.link_bytes_per_s)
    yield from _explain(_LAYER.name, _LAYER.kind, _LAYER.meaning)
    yield from (f"{_LAYER.name}{_label(row, layer=p.layer)} {_LAYER.read(p):.12g}" for row, p in rows if p.layer)


def _explain(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _label(row: Row, **more: str) -> str:
    labels = {"rank": str(row.rank), "host": row.host, **more}
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
