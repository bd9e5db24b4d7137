"""Writes the figures of a job for Prometheus, in its text format, version 0.0.4.

In: a snapshot of the job.  Out: text.
Unknown figures are left out, because they are not 0; a rank that has not reported yet has only `undertow_rank_up`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from undertow.observe.live.job_state import JobSnapshot, RankRow
from undertow.observe.meter.status_report import StatusReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Metric(NamedTuple):
    """A metric of every rank that has reported; `read` returns None where the figure is unknown."""

    name: str
    kind: str
    meaning: str
    read: Callable[[StatusReport], float | None]


_LAYER = "undertow_slowest_layer_seconds"  # has the layer as a label
_METRICS = (
    _Metric("undertow_steps_total", "counter", "Synchronised backward passes so far.", lambda r: r.steps),
    _Metric("undertow_step_rate", "gauge", "Steps per second over the last seconds.", lambda r: r.steps_per_s),
    _Metric("undertow_wait_seconds_total", "counter", "Time that the training waited.", lambda r: r.waited_s),
    _Metric("undertow_wait_ratio", "gauge", "Share of waiting in the last seconds.", lambda r: r.wait_share),
    _Metric("undertow_turn_ratio", "gauge", "Share in which another job had the device.", lambda r: r.turn_share),
    _Metric("undertow_bytes_out_total", "counter", "Bytes of slices sent.", lambda r: r.bytes_out),
    _Metric("undertow_bytes_in_total", "counter", "Bytes of slices received.", lambda r: r.bytes_in),
    _Metric("undertow_uptime_seconds", "gauge", "Time since the worker joined the job.", lambda r: r.uptime_s),
    _Metric(
        "undertow_link_bytes_per_second",
        "gauge",
        "Measured rate of the link, each way.",
        lambda r: r.link_bytes_per_s or None,
    ),
    _Metric(
        _LAYER,
        "gauge",
        "Forward and backward time of the slowest layer, per step.",
        lambda r: r.layer_ms_per_step / 1e3 if r.layer else None,
    ),
)


def write_metrics(snapshot: JobSnapshot) -> str:
    return "".join(line + "\n" for line in _list_lines(snapshot))


def _list_lines(snapshot: JobSnapshot) -> Iterator[str]:
    yield from _explain("undertow_rank_up", "gauge", "1 while the worker runs and reports.")
    for row in snapshot.rows:
        yield f"undertow_rank_up{_label(row)} {int(row.is_up and not row.is_alarming and row.report is not None)}"
    rows = [(row, row.report) for row in snapshot.rows if row.report is not None]
    for metric in _METRICS:
        yield from _explain(metric.name, metric.kind, metric.meaning)
        for row, report in rows:
            value = metric.read(report)
            if value is not None:
                labels = {"layer": report.layer} if metric.name == _LAYER else {}
                yield f"{metric.name}{_label(row, **labels)} {value:.12g}"


def _explain(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _label(row: RankRow, **more: str) -> str:
    labels = {"rank": str(row.rank), "host": row.host, **more}
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
