"""The results of `undertow share bench`, and the file that keeps them.

In: what was measured.  Out: a JSON file with every figure, and what somebody else needs to take them again.
All times are seconds per step, of hosts that are not slowed down.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from undertow.errors import ConfigError
from undertow.files import write_file

FORMAT = 1


class JobFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One job, when nobody else is there."""

    model: str
    label: str
    weight: float
    is_urgent: bool
    compute_s: float  # c: nominal, or measured where compute is real
    alone_s: float  # T
    exposed_s: float  # m = T - c
    exposed_over_compute: float  # m / c
    links_s: float | None  # for so long its bytes fill a link; None: links are not shaped
    turns_overhead: float  # what taking turns adds to a step alone, as a fraction


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One arrangement; what has no meaning in it is None."""

    arrangement: str
    steps_s: list[float]  # of each job: median of the laps
    slow_downs: list[float]  # steps_s over the time alone
    gain: float | None = None  # over one after the other, in the middle one of the rounds
    gain_low: float | None = None  # in the worst round, and in the best
    gain_high: float | None = None
    ideal: float | None = None  # with one step of each job, if device and links were never at rest in vain
    ideal_as_mixed: float | None = None  # with as many steps of each as were made
    cpu: float = 0.0  # seconds of processor time per second, all workers together
    laps_s: list[list[float]] = []  # of each lap: steps_s

    @property
    def of_ideal(self) -> float | None:
        return None if self.gain is None or self.ideal is None else self.gain / self.ideal


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of jobs on links of one speed."""

    mode: str
    system: str
    hosts: int
    bandwidth_gbit: float | None  # nominal, before scaling; None: not shaped
    ratio: float | None  # m / c of the first job in plain mode, as asked for
    scale: float
    slowdown: float
    jobs: list[JobFigures]
    rows: list[Row]


class ShareResults(msgspec.Struct, frozen=True, kw_only=True):
    machine: dict[str, str]
    date: str  # ISO 8601
    versions: dict[str, str]
    command: str
    cases: list[Case]
    notes: list[str]


def write_share_results(results: ShareResults, path: Path) -> None:
    data = msgspec.json.encode({"format": FORMAT, **msgspec.structs.asdict(results)})
    try:
        write_file(path, msgspec.json.format(data, indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"results cannot be written to {path}: {error.strerror}") from None
