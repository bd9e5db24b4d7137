"""The one reader of the environment: argument first, then variable, then default.

In: keyword arguments and a mapping of environment variables.
Out: a frozen `Settings`.  Nothing else in the package reads `UNDERTOW_*`.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from undertow import bounds
from undertow.errors import ConfigError
from undertow.hidden import read_environment
from undertow.plan.sizing import ALIGNMENT, Sizes
from undertow.trace.window import parse_window

# The range of every setting that is a number.
BOUNDS = {
    "rank": bounds.RANK,
    "world_size": bounds.WORLD_SIZE,
    "local_rank": bounds.RANK,
    "local_world_size": bounds.WORLD_SIZE,
    "master_port": bounds.ANY_PORT,
    "start_timeout_s": bounds.TIMEOUT_S,
    "silence_timeout_s": bounds.TIMEOUT_S,
    "stall_timeout_s": bounds.TIMEOUT_S,
    "slice_bytes": bounds.CHOSEN_SLICE_BYTES,
    "smallest_slice_bytes": bounds.SLICE_BYTES,
    "largest_slice_bytes": bounds.SLICE_BYTES,
    "slice_time_s": bounds.SLICE_TIME_S,
    "credit_bytes": bounds.CREDIT_BYTES,
    "share_weight": bounds.WEIGHT,
}


class Priority(enum.Enum):
    """Where urgent slices may overtake others; only where the next forward pass starts early."""

    BOTH = "both"
    PUSH = "push"  # to the shards; their answers leave in the order in which they are ready
    OFF = "off"


class Batch(enum.Enum):
    """What becomes of the batch of a single-process script, and of loaders given to `undertow.torch.distribute`."""

    SAME = "same"  # every rank keeps the script's: all together have as many times of it
    SPLIT = "split"  # all together have the script's: results are those of a single process


class _Switch(enum.Enum):
    """A choice with the members ON and OFF, which accepts the other words of a switch as well."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        word = _WORDS.get(str(value))
        return None if word is None else cls["ON" if word else "OFF"]


class Horovod(_Switch):
    """What `import horovod.torch` finds."""

    AUTO = "auto"  # undertow's, unless Horovod is installed
    ON = "on"  # undertow's
    OFF = "off"  # what it finds without undertow


class Checksum(_Switch):
    """Which frames carry a checksum of their body; those that do are always checked."""

    AUTO = "auto"  # frames between hosts: Unix sockets on one host cannot damage anything
    ON = "on"
    OFF = "off"


class PlainScripts(_Switch):
    """What becomes of a single-process script."""

    AUTO = "auto"  # trained on all workers; it sees RANK, until that has led it to NCCL on a host without it
    ON = "on"  # trained on all workers; it never sees RANK
    OFF = "off"  # left alone: each worker runs it by itself


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How a job takes turns with others."""

    name: str
    weight: float
    is_urgent: bool
    socket: str  # where the arbiter is; empty: where it always is
    is_spokesman: bool  # the first worker on its host


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set, with its variable and its default."""

    rank: int = field(default=0, metadata={"env": "RANK", "help": "this worker's number, 0 to world_size - 1"})
    world_size: int = field(default=1, metadata={"env": "WORLD_SIZE", "help": "number of workers"})
    local_rank: int = field(default=0, metadata={"env": "LOCAL_RANK", "help": "this worker's number on its host"})
    local_world_size: int = field(default=1, metadata={"env": "LOCAL_WORLD_SIZE", "help": "workers on this host"})
    master_addr: str = field(default="127.0.0.1", metadata={"env": "MASTER_ADDR", "help": "host of rank 0"})
    master_port: int = field(default=0, metadata={"env": "MASTER_PORT", "help": "where rank 0 waits for the others"})
    rendezvous: str = field(
        default="", metadata={"env": "UNDERTOW_RENDEZVOUS", "help": "address:port of the launcher's meeting point"}
    )
    token: str = field(
        default="", metadata={"env": "UNDERTOW_TOKEN", "help": "the job's secret; `undertow run` makes a fresh one"}
    )
    start_marks: str = field(
        default="",
        metadata={
            "env": "UNDERTOW_START_MARKS",
            "help": "file in which a worker tells its launcher that it waits for others (`undertow run` sets it)",
        },
    )
    address: str = field(
        default="",
        metadata={"env": "UNDERTOW_ADDRESS", "help": "own address, used for all peers; default: the route to rank 0"},
    )
    start_timeout_s: float = field(
        default=120.0, metadata={"env": "UNDERTOW_START_TIMEOUT", "help": "seconds to wait for all workers to arrive"}
    )
    silence_timeout_s: float = field(
        default=10.0, metadata={"env": "UNDERTOW_SILENCE_TIMEOUT", "help": "seconds without a sign of life: peer lost"}
    )
    stall_timeout_s: float = field(
        default=1800.0,
        metadata={
            "env": "UNDERTOW_STALL_TIMEOUT",
            "help": "seconds to wait for a living worker that does not contribute",
        },
    )
    slice_bytes: int = field(
        default=0,
        metadata={
            "env": "UNDERTOW_SLICE",
            "help": "bytes of one slice on the wire; default: what the measured link carries in UNDERTOW_SLICE_TIME",
        },
    )
    smallest_slice_bytes: int = field(
        default=Sizes().smallest,
        metadata={"env": "UNDERTOW_SMALLEST_SLICE", "help": "the least that is chosen where the link is slow"},
    )
    largest_slice_bytes: int = field(
        default=Sizes().largest,
        metadata={"env": "UNDERTOW_LARGEST_SLICE", "help": "the most that is chosen; a quarter of it at the start"},
    )
    slice_time_s: float = field(
        default=Sizes().time_s,
        metadata={"env": "UNDERTOW_SLICE_TIME", "help": "seconds that a link needs for a slice, if its size is chosen"},
    )
    credit_bytes: int = field(
        default=0,
        metadata={
            "env": "UNDERTOW_CREDIT",
            "help": "bytes in flight at most; default: four slices per peer, but 8 to 16",
        },
    )
    checksum: Checksum = field(
        default=Checksum.AUTO,
        metadata={
            "env": "UNDERTOW_CHECKSUM",
            "help": "a checksum of frames' bytes: auto (between hosts), on (on one host too), off; rank 0 chooses",
        },
    )
    wait_free: bool = field(
        default=True,
        metadata={"env": "UNDERTOW_WAIT_FREE", "help": "off: gradients leave only when backward has ended"},
    )
    priority: Priority = field(
        default=Priority.BOTH,
        metadata={
            "env": "UNDERTOW_PRIORITY",
            "help": "slices that are needed first travel first: both ways, push (to the shards only), off",
        },
    )
    plan: str = field(
        default="auto",
        metadata={
            "env": "UNDERTOW_PLAN",
            "help": "which way gradients travel: auto (the fastest), poseidon, the name of a scheme, or a plan's file",
        },
    )
    profile: str = field(
        default="",
        metadata={
            "env": "UNDERTOW_PROFILE",
            "help": "file for what the first steps show of the model; the script ends then (`undertow plan` sets it)",
        },
    )
    share: bool = field(
        default=False,
        metadata={"env": "UNDERTOW_SHARE", "help": "take turns on the device with other jobs that do (undertow share)"},
    )
    share_name: str = field(
        default="", metadata={"env": "UNDERTOW_SHARE_NAME", "help": "what the job is called there; default: its script"}
    )
    share_weight: float = field(
        default=1.0, metadata={"env": "UNDERTOW_SHARE_WEIGHT", "help": "how many times an equal share of device time"}
    )
    share_urgent: bool = field(
        default=False, metadata={"env": "UNDERTOW_SHARE_URGENT", "help": "the others fill this job's gaps only"}
    )
    share_socket: str = field(
        default="",
        metadata={"env": "UNDERTOW_SHARE_SOCKET", "help": "where the arbiter is; default: one per user and host"},
    )
    ddp: bool = field(
        default=True,
        metadata={"env": "UNDERTOW_DDP", "help": "off: torch's DistributedDataParallel of a script stays torch's own"},
    )
    plain: PlainScripts = field(
        default=PlainScripts.AUTO,
        metadata={
            "env": "UNDERTOW_PLAIN",
            "help": "a single-process script is trained on all workers: auto, on (RANK is hidden from it), off (never)",
        },
    )
    batch: Batch = field(
        default=Batch.SAME,
        metadata={
            "env": "UNDERTOW_BATCH",
            "help": "in such a script, and for undertow.torch.distribute(): same (each worker keeps the batch size) or "
            "split (all share it)",
        },
    )
    overlap: bool = field(
        default=False,
        metadata={
            "env": "UNDERTOW_OVERLAP",
            "help": "scripts that are not written for undertow get parallelize: the next forward starts early",
        },
    )
    seed_per_rank: bool = field(
        default=False,
        metadata={
            "env": "UNDERTOW_SEED_PER_RANK",
            "help": "in a single-process script that draws its own batches: each worker draws others",
        },
    )
    horovod: Horovod = field(
        default=Horovod.AUTO,
        metadata={
            "env": "UNDERTOW_HOROVOD",
            "help": "import horovod.torch finds undertow's: auto (unless Horovod is installed), on, off (never)",
        },
    )
    autoload: bool = field(
        default=False,
        metadata={
            "env": "UNDERTOW_AUTOLOAD",
            "help": "under torchrun: whatever imports torch is prepared as by `undertow run`",
        },
    )
    trace: str = field(
        default="", metadata={"env": "UNDERTOW_TRACE", "help": "folder for a record of every stage; off if empty"}
    )
    trace_steps: str = field(
        default="100",
        metadata={"env": "UNDERTOW_TRACE_STEPS", "help": "which steps are in it: 20 (the first), 1000:1050 or all"},
    )
    live: str = field(
        default="",
        metadata={
            "env": "UNDERTOW_LIVE",
            "help": "socket of a launcher that shows the job live (`undertow run` sets it)",
        },
    )

    def __post_init__(self) -> None:
        for name, limits in BOUNDS.items():
            limits.check(name, getattr(self, name))
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank {self.rank} is outside of 0 to {self.world_size - 1}: check RANK and WORLD_SIZE")
        for size in (self.slice_bytes or self.largest_slice_bytes, self.smallest_slice_bytes, self.largest_slice_bytes):
            if size < bounds.SLICE_BYTES.least or size % ALIGNMENT:
                raise ConfigError(f"slice of {size} bytes: use a multiple of 16 of at least 1024, or leave it out")
        if 4 * self.smallest_slice_bytes > self.largest_slice_bytes:
            raise ConfigError(
                f"slices of {self.smallest_slice_bytes} to {self.largest_slice_bytes} bytes: the largest must be four "
                "times the smallest at least"
            )
        largest = self.slice_bytes or self.largest_slice_bytes
        if self.credit_bytes and self.credit_bytes < 2 * largest:
            raise ConfigError(
                f"a credit of {self.credit_bytes} bytes is less than two slices of {largest}: raise UNDERTOW_CREDIT, "
                "or lower UNDERTOW_SLICE or UNDERTOW_LARGEST_SLICE"
            )
        parse_window(self.trace_steps)

    @property
    def sizes(self) -> Sizes:
        """What slices may be."""
        return Sizes(self.slice_bytes, self.smallest_slice_bytes, self.largest_slice_bytes, self.slice_time_s)

    @property
    def sharing(self) -> Sharing | None:
        """None: the job has its devices for itself."""
        if not self.share:
            return None
        return Sharing(
            name=self.share_name or Path(sys.argv[0]).stem or "python",
            weight=self.share_weight,
            is_urgent=self.share_urgent,
            socket=self.share_socket,
            is_spokesman=self.local_rank == 0,
        )


def read_settings(environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """Merge arguments (None means not given), the environment and the defaults."""
    environ = read_environment() if environ is None else environ
    values: dict[str, Any] = {}
    for item in fields(Settings):
        if arguments.get(item.name) is not None:
            values[item.name] = _read_argument(item, arguments.pop(item.name))
        elif environ.get(item.metadata["env"], "") != "":
            values[item.name] = _parse(item, item.metadata["env"], environ[item.metadata["env"]])
        arguments.pop(item.name, None)
    if arguments:
        raise ConfigError(
            f"unknown setting {next(iter(arguments))!r}; known: {', '.join(f.name for f in fields(Settings))}"
        )
    return Settings(**values)


class Origin(enum.Enum):
    """Where a setting's value came from."""

    ARGUMENT = "argument"
    VARIABLE = "variable"
    DEFAULT = "default"


@dataclass(frozen=True)
class Source:
    """One setting: its value as text, where that came from, and what is wrong with it, if anything."""

    name: str
    variable: str
    value: str
    origin: Origin
    complaint: str = ""


def list_sources(environ: Mapping[str, str] | None = None, **arguments: Any) -> list[Source]:
    """Every setting as `read_settings` would find it, also those that it would refuse."""
    environ = read_environment() if environ is None else environ
    return [_find_source(item, environ, arguments.get(item.name)) for item in fields(Settings)]


def _find_source(item: Field[Any], environ: Mapping[str, str], argument: Any) -> Source:
    variable = item.metadata["env"]
    if argument is not None:
        return Source(item.name, variable, _show(argument), Origin.ARGUMENT)
    text = environ.get(variable, "")
    if text == "":
        return Source(item.name, variable, _show(item.default), Origin.DEFAULT)
    try:
        value = _show(_parse(item, variable, text))
    except ConfigError as error:
        return Source(item.name, variable, text, Origin.VARIABLE, str(error))
    return Source(item.name, variable, value, Origin.VARIABLE)


_WORDS = {"on": True, "1": True, "true": True, "yes": True, "off": False, "0": False, "false": False, "no": False}


def _read_argument(item: Field[Any], value: Any) -> Any:
    """The word of a choice or switch means what it means in a variable, and so do True and False."""
    kind = type(item.default)
    if isinstance(value, str) and (kind is bool or issubclass(kind, enum.Enum)):
        return _parse(item, item.name, value)
    if isinstance(value, bool) and issubclass(kind, enum.Enum):
        return _parse(item, item.name, _show(value))
    if isinstance(value, os.PathLike) and kind is str:
        return os.fspath(value)
    if not isinstance(value, kind) and item.name not in BOUNDS:
        raise ConfigError(f"{item.name} {value!r} is not possible: give {_KINDS.get(kind) or _list_choices(kind)}")
    return value


_KINDS = {bool: "True or False", str: "text"}


def _list_choices(kind: type[enum.Enum]) -> str:
    return f"one of {', '.join(item.value for item in kind)}"


def _parse(item: Field[Any], variable: str, text: str) -> Any:
    if item.name in BOUNDS:
        return BOUNDS[item.name].parse(variable, text, sign="=")
    name = item.name
    kind: type = type(item.default)
    if name == "token":
        _check_text(variable, text)
    try:
        if kind is bool:
            return _WORDS[text.lower()]
        return kind(text.lower() if issubclass(kind, enum.Enum) else text)
    except (ValueError, KeyError):
        if issubclass(kind, enum.Enum):
            raise ConfigError(f"{variable}={text!r} is not valid for {name}: use {_list_choices(kind)}") from None
        raise ConfigError(f"{variable}={text!r} is not a valid {kind.__name__} for {name}") from None


def _check_text(variable: str, text: str) -> None:
    """Refuse bytes of the environment that are not UTF-8: they cannot be sent as text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{variable} is not text in UTF-8") from None


def table() -> list[tuple[str, str, str]]:
    """(variable, default, help) of every setting, for the docs and the help text."""
    return [(f.metadata["env"], _show(f.default), f.metadata["help"]) for f in fields(Settings)]


def _show(value: object) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    return str(value) if not isinstance(value, bool) else "on" if value else "off"
