"""Results of a benchmark or a simulation, and their file.

In: one `Point` for each system at each bandwidth.  Out: a JSON file, and `Results` again.
An invalid file is refused with its name and the field; unknown fields are ignored, so that a newer undertow can add
fields.  Never judges what is good or bad.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec

from undertow import bounds
from undertow.bounds import Bounds, show
from undertow.decoding import Decoder, Format, WrongSchema
from undertow.errors import ConfigError, Garbled
from undertow.files import write_file
from undertow.observe.report.machine import RunRecord

# If two runs of a point may differ by more than this, one run proves nothing.
NOISE = 0.05
LARGEST = 1e15  # a larger figure would overflow in a picture
ORIGINS = ("measured", "simulated")
# Increased when an older undertow would misread the file, not when a field is added.
FORMAT = 1

_TIME_S = Bounds(least=1e-9, most=1e9, unit="seconds", is_whole=False)
_FACTOR = Bounds(least=1e-3, most=1e12, is_whole=False)
_LIMITS = {
    "hosts": bounds.HOSTS,
    "bandwidth_gbit": Bounds(least=1e-6, most=1e3, unit="Gbit/s", is_whole=False),
    "scale": _FACTOR,
    "slowdown": _FACTOR,
    "batch": bounds.BATCH,
    "iteration_s": _TIME_S,
    "compute_s": _TIME_S,
    "bound_s": _TIME_S,
    "steps": Bounds(least=1, most=1 << 53),
}


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Speed of one system that trains one model at one number of hosts and one bandwidth; times are per step."""

    model: str
    hosts: int
    bandwidth_gbit: float | None  # nominal, before scaling; None: not shaped
    scale: float  # factor by which tensors and bandwidth were both divided, which leaves the times unchanged
    slowdown: float = 1.0  # factor by which everything was slowed down; times are given without it
    system: str
    batch: int  # samples of one host in one step
    iteration_s: float  # median
    iteration_low_s: float  # quartiles of the steps
    iteration_high_s: float
    compute_s: float  # pure compute, F + B
    bound_s: float  # T = max(F + B, bytes that this system sends per direction / W)
    speedup: float  # over one worker: hosts * compute_s / iteration_s
    gain_over_ddp: float | None  # DDP's iteration_s / iteration_s; None when DDP was not run
    bytes_out_per_host: float | None  # per step, by the kernel's counters, without headers
    cpu_s: float | None  # CPU seconds per step, of all hosts together
    steps: int  # number of measured steps
    disagreement: float  # likely difference between two runs of this point, as a fraction
    origin: str  # "measured" or "simulated"

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            _check(name, value)

    @property
    def is_shaped(self) -> bool:
        """Whether the links were limited to a bandwidth."""
        return self.bandwidth_gbit is not None

    @property
    def is_noisy(self) -> bool:
        """Whether another run may differ so much that this one proves nothing."""
        return self.disagreement > NOISE

    @property
    def of_compute(self) -> float:
        """Step time as a multiple of pure compute; 1 means that the network is hidden."""
        return self.iteration_s / self.compute_s

    @property
    def exposed_s(self) -> float:
        """Time that communication adds to compute."""
        return self.iteration_s - self.compute_s

    @property
    def of_bound(self) -> float:
        """Lower bound as a fraction of the step; 1 means that no schedule could be faster."""
        return self.bound_s / self.iteration_s

    @property
    def samples_per_s(self) -> float:
        """Throughput of all hosts together."""
        return self.hosts * self.batch / self.iteration_s


class Results(RunRecord, frozen=True, kw_only=True):
    """Points, with everything needed to measure them again."""

    points: list[Point]
    notes: list[str]


class _Head(msgspec.Struct):
    format: int


_heads: Decoder[_Head] = Decoder(_Head, format=Format.JSON)
_files: Decoder[Results] = Decoder(Results, format=Format.JSON)


def find_notch(low_s: float, high_s: float, *, steps: int) -> float:
    """Return the notch of a median, which is its uncertainty; medians whose notches overlap may be equal.

    After McGill, Tukey and Larsen, Variations of box plots, The American Statistician, 1978.
    """
    return 1.57 * (high_s - low_s) / math.sqrt(steps)


def write_results(results: msgspec.Struct, path: str | os.PathLike[str]) -> None:
    """Write results to a JSON file, which `read_results` can read if they are `Results`."""
    data = msgspec.json.encode({"format": FORMAT, **msgspec.structs.asdict(results)})
    try:
        write_file(path, msgspec.json.format(data, indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"results cannot be written to {os.fspath(path)}: {error.strerror}") from None


def read_results(path: str | os.PathLike[str]) -> Results:
    """Read results that `write_results` wrote; raise `ConfigError` with the file's name and what is wrong with it."""
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
        head = _heads.decode(data)
        if head.format > FORMAT:
            raise ConfigError(
                f"{name} has format {head.format}, but this undertow reads up to {FORMAT}: update undertow to read it"
            )
        return _files.decode(data)
    except OSError as error:
        raise ConfigError(f"results cannot be read from {name}: {error.strerror}") from None
    except Garbled as error:
        # The error about a wrong schema ends with the path of the field, as in `$.points[2].hosts`.
        kind = "a results file of undertow" if isinstance(error, WrongSchema) else "JSON"
        raise ConfigError(f"{name} is not {kind}: {error}") from None


def _check(name: str, value: object) -> None:
    """Refuse values that are impossible, or that would break later calculations."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} of a point is {value}: give a finite number")
    if isinstance(value, int | float) and abs(value) > LARGEST:
        raise ConfigError(f"{name} of a point is {show(value)}: give a number of at most {LARGEST:g}")
    if isinstance(value, int | float) and name in _LIMITS:
        _LIMITS[name].check_range(f"{name} of a point is {show(value)}, which", value)
    if name == "origin" and value not in ORIGINS:
        raise ConfigError(f"origin of a point is {value!r}: use {' or '.join(map(repr, ORIGINS))}")
