"""Columns of a table of results: heading, definition, and how each shows a point.

In: points.  Out: the columns that these points need, and the rows in groups.
The tables in the terminal and on the page are both made from these columns, so that a figure has the same name, digits
and meaning in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from undertow.observe.report.points import NOISE, Point
from undertow.units import (
    ABSENT,
    GIGA,
    format_bandwidth,
    format_figure,
    format_ms_figure,
    format_percent,
    format_percent_figure,
    format_quantity,
)

UNSHAPED = "unshaped"
# Written before the time, where it reads as "about".
NOISY = "~"
NOISY_MEANS = f"too noisy: another run may well differ by more than {format_percent(NOISE)}"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table."""

    heading: str
    definition: str
    show: Callable[[Point], str]
    is_number: bool = True
    is_optional: bool = False  # shown if at least one point has a value
    words: Callable[[Point], str] | None = None  # for a value that all points share, given once, below the table


def show_bandwidth(point: Point) -> str:
    """Return the bandwidth in Gbit/s, or that the links were not shaped."""
    return UNSHAPED if point.bandwidth_gbit is None else f"{point.bandwidth_gbit:g}"


def describe_link(bandwidth_gbit: float | None) -> str:
    """Return the bandwidth with its unit, or that the links were not shaped."""
    return UNSHAPED if bandwidth_gbit is None else format_bandwidth(bandwidth_gbit * GIGA)


def _show_iteration(point: Point) -> str:
    mark = NOISY if point.is_noisy else ""
    if point.iteration_low_s == point.iteration_high_s:
        return f"{mark}{format_ms_figure(point.iteration_s)}"
    spread = f"{format_ms_figure(point.iteration_low_s)}–{format_ms_figure(point.iteration_high_s)}"
    return f"{mark}{format_ms_figure(point.iteration_s)} ({spread})"


COLUMNS = (
    Column(
        heading="model",
        definition="The network that is trained.",
        show=lambda point: point.model,
        is_number=False,
        words=lambda point: point.model,
    ),
    Column(
        heading="hosts",
        definition="Machines that train together, with one worker each.",
        show=lambda point: str(point.hosts),
        words=lambda point: format_quantity(point.hosts, "host"),
    ),
    Column(
        heading="batch",
        definition="Samples that each host computes in one step.",
        show=lambda point: str(point.batch),
        words=lambda point: f"batch {point.batch} per host",
    ),
    Column(
        heading="scale",
        definition="Factor by which tensors and bandwidth were both divided, which leaves all times unchanged, so that "
        "a small machine can emulate fast links. Bandwidths are given without this factor.",
        show=lambda point: f"{point.scale:g}",
        words=lambda point: "" if point.scale == 1 else f"scale {point.scale:g}",
    ),
    Column(
        heading="slowdown",
        definition="Factor by which computing and the links were both slowed down, so that a small machine can emulate "
        "many hosts. Times and bandwidths are given without this factor.",
        show=lambda point: f"{point.slowdown:g}",
        words=lambda point: "" if point.slowdown == 1 else f"slowdown {point.slowdown:g}",
    ),
    Column(
        heading="origin",
        definition="Measured on emulated hosts, or simulated.",
        show=lambda point: point.origin,
        is_number=False,
        words=lambda point: point.origin,
    ),
    Column(
        heading="Gbit/s",
        definition=f"Bandwidth of each host's link, in each direction; '{UNSHAPED}' is as fast as the machine allows.",
        show=show_bandwidth,
    ),
    Column(
        heading="system",
        definition="System that synchronised the gradients; 'ddp' is torch's DistributedDataParallel.",
        show=lambda point: point.system,
        is_number=False,
    ),
    Column(
        heading="iteration, ms",
        definition="Time of one training step: the median of all steps, and in brackets the quartiles between which "
        f"half of the steps lie. A '{NOISY}' marks a point that is {NOISY_MEANS}.",
        show=_show_iteration,
    ),
    Column(
        heading="× compute",
        definition="The step's time divided by the time of its forward and backward pass alone; 1 means that the "
        "network is hidden completely.",
        show=lambda point: format_figure(point.of_compute),
    ),
    Column(
        heading="exposed ms",
        definition="Time that the network adds to a step: the step's time minus that of its forward and backward pass.",
        show=lambda point: format_ms_figure(round(point.exposed_s, 6) + 0.0) if point.origin == "simulated" else ABSENT,
        is_optional=True,
    ),
    Column(
        heading="speed-up",
        definition="Throughput of all hosts divided by that of one worker alone, which has no network to wait for; "
        "linear speed-up is the number of hosts.",
        show=lambda point: format_figure(point.speedup),
    ),
    Column(
        heading="gain over DDP",
        definition="A step's time with torch DDP divided by its time with this system, all else equal; above 1 is "
        "faster than DDP.",
        show=lambda point: format_figure(point.gain_over_ddp),
        is_optional=True,
    ),
    Column(
        heading="% of bound",
        definition="The lower bound in percent of the step's time. No schedule makes a step shorter than its forward "
        "and backward pass, or than sending its bytes at full bandwidth in one direction. The longer of the two "
        "is the lower bound; 100 % cannot be improved.",
        show=lambda point: format_percent_figure(point.of_bound),
    ),
    Column(
        heading="MB out/host",
        definition="Bytes that one host sends in a step, in units of 10^6, as the kernel counts them on its link, "
        "without the headers of Ethernet, IP and TCP.",
        show=lambda point: format_figure(None if point.bytes_out_per_host is None else point.bytes_out_per_host / 1e6),
        is_optional=True,
    ),
    Column(
        heading="CPU s",
        definition="Processor time of one step in seconds, summed over all hosts.",
        show=lambda point: format_figure(point.cpu_s),
        is_optional=True,
    ),
)


def choose_columns(points: Sequence[Point]) -> list[Column]:
    """Return the columns that these points need, in the order of `COLUMNS`."""
    return [column for column in COLUMNS if _is_needed(column, points)]


def choose_definitions(points: Sequence[Point]) -> list[Column]:
    """Return the columns that a reader must know: those of the table, and those given in words below it."""
    return [column for column in COLUMNS if _is_needed(column, points) or any(_describe(column, points))]


def _is_needed(column: Column, points: Sequence[Point]) -> bool:
    values = {column.show(point) for point in points}
    if column.words is not None:
        return len(values) > 1
    return not column.is_optional or bool(values - {ABSENT})


def _describe(column: Column, points: Sequence[Point]) -> list[str]:
    return [] if column.words is None else list(filter(None, map(column.words, points)))


def describe_common(points: Sequence[Point], *, among: Sequence[Point] = ()) -> str:
    """Describe what all points share: `resnet50, 4 hosts, batch 32 per host, measured`.

    With `among`, include only what distinguishes these points from the others in it.
    """
    if not points:
        return ""
    common = [column for column in COLUMNS if not _is_needed(column, points)]
    if among:
        common = [column for column in common if _is_needed(column, among)]
    return ", ".join(words for column in common for words in _describe(column, points[:1]))


def group_rows(points: Sequence[Point]) -> list[list[Point]]:
    """Group points that differ only in their system, in the order given.

    Models keep their order as well; hosts and bandwidths ascend, unshaped last.
    """
    models = list(dict.fromkeys(point.model for point in points))
    groups: dict[tuple[object, ...], list[Point]] = {}
    for point in sorted(points, key=lambda point: (models.index(point.model), *_sort_key(point))):
        groups.setdefault((point.model, *_sort_key(point)), []).append(point)
    return list(groups.values())


def _sort_key(point: Point) -> tuple[float, ...]:
    return point.hosts, point.batch, point.scale, not point.is_shaped, point.bandwidth_gbit or 0.0
