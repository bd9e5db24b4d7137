"""The columns of a report: each one's heading, its one definition, and how it shows a point.

In: points.  Out: the columns that have something to say about them, and the rows in groups.
The table of the terminal and that of the page are both made from here, so that a figure has
the same name, digits and meaning everywhere.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from undertow.report.points import NOISE, Point

ABSENT = "–"
UNSHAPED = "unshaped"
# In front of the time: it reads as "about".
NOISY = "~"
NOISY_MEANS = f"too noisy: another run may well be more than {NOISE * 100:.0f} % away"


class Shown(enum.Enum):
    """When a column is there."""

    ALWAYS = enum.auto()
    WHEN_SEVERAL = enum.auto()  # a value that all points share is said once, above the table
    WHEN_KNOWN = enum.auto()  # if at least one point has a value


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column; `words` says a value that all points share."""

    heading: str
    definition: str
    show: Callable[[Point], str]
    shown: Shown
    is_number: bool = True
    words: Callable[[Point], str] = lambda point: ""


def show_bandwidth(point: Point) -> str:
    """The bandwidth in Gbit/s, or that there is none."""
    return UNSHAPED if point.bandwidth_gbit is None else f"{point.bandwidth_gbit:g}"


def show_figure(value: float | None) -> str:
    """Three digits are as many as a measurement here can have."""
    if value is None:
        return ABSENT
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{decimals}f}"


def show_ms(seconds: float) -> str:
    """A time in milliseconds."""
    return show_figure(seconds * 1e3)


def _show_iteration(point: Point) -> str:
    mark = NOISY if point.is_noisy else ""
    if point.iteration_low_s == point.iteration_high_s:
        return f"{mark}{show_ms(point.iteration_s)}"
    spread = f"{show_ms(point.iteration_low_s)}–{show_ms(point.iteration_high_s)}"
    return f"{mark}{show_ms(point.iteration_s)} ({spread})"


def _show_bytes(point: Point) -> str:
    size_bytes = point.bytes_out_per_host
    return show_figure(None if size_bytes is None else size_bytes / 1e6)


COLUMNS = (
    Column(
        heading="model",
        definition="The network that is trained.",
        show=lambda point: point.model,
        shown=Shown.WHEN_SEVERAL,
        is_number=False,
        words=lambda point: point.model,
    ),
    Column(
        heading="hosts",
        definition="Machines that train together, with one worker each.",
        show=lambda point: str(point.hosts),
        shown=Shown.WHEN_SEVERAL,
        words=lambda point: f"{point.hosts} host{'' if point.hosts == 1 else 's'}",
    ),
    Column(
        heading="batch",
        definition="Samples that each host computes in one step.",
        show=lambda point: str(point.batch),
        shown=Shown.WHEN_SEVERAL,
        words=lambda point: f"batch {point.batch} per host",
    ),
    Column(
        heading="scale",
        definition="Tensors and bandwidth were both divided by this, which leaves every time as it is, so that a small "
        "machine can emulate fast links. Bandwidths are given as they are before that.",
        show=lambda point: f"{point.scale:g}",
        shown=Shown.WHEN_SEVERAL,
        words=lambda point: "" if point.scale == 1 else f"scale {point.scale:g}",
    ),
    Column(
        heading="slowdown",
        definition="Computing and the links were both slowed down by this, so that a small machine can emulate many "
        "hosts. Times and bandwidths are given as they are before that.",
        show=lambda point: f"{point.slowdown:g}",
        shown=Shown.WHEN_SEVERAL,
        words=lambda point: "" if point.slowdown == 1 else f"slowdown {point.slowdown:g}",
    ),
    Column(
        heading="origin",
        definition="Measured on emulated hosts, or simulated.",
        show=lambda point: point.origin,
        shown=Shown.WHEN_SEVERAL,
        is_number=False,
        words=lambda point: point.origin,
    ),
    Column(
        heading="Gbit/s",
        definition=f"Bandwidth of each host's link, in each direction; '{UNSHAPED}' is as fast as the machine goes.",
        show=show_bandwidth,
        shown=Shown.ALWAYS,
    ),
    Column(
        heading="system",
        definition="What synchronised the gradients; 'ddp' is torch's DistributedDataParallel.",
        show=lambda point: point.system,
        shown=Shown.ALWAYS,
        is_number=False,
    ),
    Column(
        heading="iteration, ms",
        definition="Time of one training step: the median of all steps, and in brackets the quartiles between which "
        f"half of the steps lie. A '{NOISY}' marks a point that is {NOISY_MEANS}.",
        show=_show_iteration,
        shown=Shown.ALWAYS,
    ),
    Column(
        heading="× compute",
        definition="The step's time divided by that of its forward and backward pass alone; 1 means that the network "
        "is hidden completely.",
        show=lambda point: show_figure(point.of_compute),
        shown=Shown.ALWAYS,
    ),
    Column(
        heading="exposed ms",
        definition="What the network adds to a step: its time without that of its forward and backward pass.",
        show=lambda point: show_ms(round(point.exposed_s, 6) + 0.0) if point.origin == "simulated" else ABSENT,
        shown=Shown.WHEN_KNOWN,
    ),
    Column(
        heading="speed-up",
        definition="Throughput of all hosts divided by that of one worker alone, which has no network to wait for; "
        "linear speed-up is the number of hosts.",
        show=lambda point: show_figure(point.speedup),
        shown=Shown.ALWAYS,
    ),
    Column(
        heading="gain over DDP",
        definition="The time of a step of torch DDP divided by that of this system, all else equal; above 1 is "
        "faster than DDP.",
        show=lambda point: show_figure(point.gain_over_ddp),
        shown=Shown.WHEN_KNOWN,
    ),
    Column(
        heading="% of bound",
        definition="The lower bound in percent of the step's time. No schedule makes a step shorter than its forward "
        "and backward pass, or than its bytes need at full bandwidth in one direction: the longer of the two is the "
        "lower bound, and 100 % cannot be improved.",
        show=lambda point: f"{point.of_bound:.0%}".rstrip("%"),
        shown=Shown.ALWAYS,
    ),
    Column(
        heading="MB out/host",
        definition="Bytes that one host sends in a step, in units of 10^6, as the kernel counts them on its link; the "
        "headers of Ethernet, IP and TCP are taken off.",
        show=_show_bytes,
        shown=Shown.WHEN_KNOWN,
    ),
    Column(
        heading="CPU s",
        definition="Processor time of one step, in seconds, all hosts together.",
        show=lambda point: show_figure(point.cpu_s),
        shown=Shown.WHEN_KNOWN,
    ),
)


def choose_columns(points: Sequence[Point]) -> list[Column]:
    """The columns that these points need, in the order of `COLUMNS`."""
    return [column for column in COLUMNS if _is_needed(column, points)]


def choose_definitions(points: Sequence[Point]) -> list[Column]:
    """The columns that a reader has to understand: those of the table, and those that are said in words."""
    return [column for column in COLUMNS if _is_needed(column, points) or any(map(column.words, points))]


def _is_needed(column: Column, points: Sequence[Point]) -> bool:
    values = {column.show(point) for point in points}
    if column.shown is Shown.WHEN_SEVERAL:
        return len(values) > 1
    return column.shown is Shown.ALWAYS or bool(values - {ABSENT})


def describe_common(points: Sequence[Point], *, among: Sequence[Point] = ()) -> str:
    """What all points share, in words: `resnet50, 4 hosts, batch 32 per host, measured`.

    With `among`, only what tells these points apart from the others there.
    """
    if not points:
        return ""
    said = [column for column in COLUMNS if not _is_needed(column, points)]
    if among:
        said = [column for column in said if _is_needed(column, among)]
    return ", ".join(filter(None, (column.words(points[0]) for column in said)))


def group_rows(points: Sequence[Point]) -> list[list[Point]]:
    """The points that differ in their system only stay together, in the order in which they came.

    Models come in the order in which they came too; hosts and bandwidths ascend, unshaped last.
    """
    models = list(dict.fromkeys(point.model for point in points))
    groups: dict[tuple[object, ...], list[Point]] = {}
    for point in sorted(points, key=lambda point: (models.index(point.model), *_place(point))):
        groups.setdefault((point.model, *_place(point)), []).append(point)
    return list(groups.values())


def _place(point: Point) -> tuple[float, ...]:
    return point.hosts, point.batch, point.scale, not point.is_shaped, point.bandwidth_gbit or 0.0
