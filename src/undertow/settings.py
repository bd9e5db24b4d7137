"""Settings of a process, from arguments, else from environment variables, else from defaults.

In: keyword arguments and a mapping of environment variables.  Out: a frozen `Settings`.
No other module reads variables `UNDERTOW_*`, with one exception: `autoload`, which every import of torch calls, checks
for UNDERTOW_AUTOLOAD before it imports this module.
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
from undertow.sizing import ALIGNMENT, CREDIT_RULE, Sizes
from undertow.tracing.window import parse_window

# Ranges of all settings that are numbers.
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
    """Directions in which urgent slices overtake others, if the next forward pass starts early."""

    BOTH = "both"
    PUSH = "push"  # only towards the shards; their answers leave in the order in which they are ready
    OFF = "off"


class Batch(enum.Enum):
    """Batch size of each worker, in a single-process script and in loaders given to `undertow.torch.distribute`."""

    SAME = "same"  # each worker has the script's batch size, so N workers together have N times as much
    SPLIT = "split"  # all workers together have the script's batch size, so results are those of a single process


class _Switch(enum.Enum):
    """Choice with the members ON and OFF, which also accepts the other words of a switch."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        word = _WORDS.get(str(value))
        return None if word is None else cls["ON" if word else "OFF"]


class Horovod(_Switch):
    """Module that `import horovod.torch` finds."""

    AUTO = "auto"  # undertow's module, unless Horovod is installed
    ON = "on"  # undertow's module
    OFF = "off"  # the module that would be found without undertow


class Checksum(_Switch):
    """Frames that carry a checksum of their body.  Receivers always check it, whatever their own setting."""

    AUTO = "auto"  # only frames between hosts, because Unix sockets damage nothing
    ON = "on"
    OFF = "off"


class PlainScripts(_Switch):
    """Treatment of a single-process script."""

    AUTO = "auto"  # trained on all workers; it sees RANK, unless that makes it choose NCCL on a host without NCCL
    ON = "on"  # trained on all workers; it never sees RANK
    OFF = "off"  # left unchanged: each worker runs it independently


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Options of a job that takes turns with other jobs."""

    name: str
    weight: float
    is_urgent: bool
    socket: str  # socket of the arbiter; if empty, the default of this user and host
    is_verbose: bool  # True on the first worker of each host, which logs for all of them


def _setting(default: Any, variable: str, text: str) -> Any:
    return field(default=default, metadata={"env": variable, "help": text})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a process, with their variables and defaults."""

    rank: int = _setting(0, "RANK", "this worker's rank, 0 to world_size - 1")
    world_size: int = _setting(1, "WORLD_SIZE", "number of workers")
    local_rank: int = _setting(0, "LOCAL_RANK", "this worker's rank on its host")
    local_world_size: int = _setting(1, "LOCAL_WORLD_SIZE", "number of workers on this host")
    master_addr: str = _setting("127.0.0.1", "MASTER_ADDR", "host of rank 0")
    master_port: int = _setting(0, "MASTER_PORT", "port at which rank 0 waits for the others")
    rendezvous: str = _setting("", "UNDERTOW_RENDEZVOUS", "address:port of the launcher's rendezvous server")
    token: str = _setting("", "UNDERTOW_TOKEN", "the job's secret; `undertow run` generates one")
    start_marks: str = _setting(
        "",
        "UNDERTOW_START_MARKS",
        "file in which a worker reports to its launcher that it waits for others (`undertow run` sets it)",
    )
    loss_note: str = _setting(
        "",
        "UNDERTOW_LOSS_NOTE",
        "file in which a worker reports to its launcher the loss that ended it (`undertow run` sets it)",
    )
    address: str = _setting(
        "",
        "UNDERTOW_ADDRESS",
        "address at which peers reach this worker; default: that of the interface on the route to rank 0",
    )
    start_timeout_s: float = _setting(120.0, "UNDERTOW_START_TIMEOUT", "seconds to wait for all workers to arrive")
    silence_timeout_s: float = _setting(
        10.0, "UNDERTOW_SILENCE_TIMEOUT", "seconds of silence after which a worker counts as lost"
    )
    stall_timeout_s: float = _setting(
        1800.0, "UNDERTOW_STALL_TIMEOUT", "seconds to wait for a worker that is alive but does not contribute"
    )
    slice_bytes: int = _setting(
        0, "UNDERTOW_SLICE", "bytes per slice; default: what the measured link carries in UNDERTOW_SLICE_TIME"
    )
    smallest_slice_bytes: int = _setting(
        Sizes().smallest, "UNDERTOW_SMALLEST_SLICE", "minimum of the chosen slice size in bytes, for slow links"
    )
    largest_slice_bytes: int = _setting(
        Sizes().largest,
        "UNDERTOW_LARGEST_SLICE",
        "maximum of the chosen slice size in bytes; slices have at most a quarter of it before the link is measured",
    )
    slice_time_s: float = _setting(
        Sizes().time_s, "UNDERTOW_SLICE_TIME", "seconds that the link needs for a slice of the chosen size"
    )
    credit_bytes: int = _setting(0, "UNDERTOW_CREDIT", f"maximum number of bytes in flight; default: {CREDIT_RULE}")
    checksum: Checksum = _setting(
        Checksum.AUTO,
        "UNDERTOW_CHECKSUM",
        "checksum of all slices: auto (between hosts), on (also within a host), off; rank 0's setting applies to all",
    )
    wait_free: bool = _setting(True, "UNDERTOW_WAIT_FREE", "off: no gradient is sent before backward has ended")
    priority: Priority = _setting(
        Priority.BOTH,
        "UNDERTOW_PRIORITY",
        "slices needed first are sent first: both (directions), push (to the shards only), off",
    )
    plan: str = _setting(
        "auto",
        "UNDERTOW_PLAN",
        "schemes of the gradients: auto (the fastest), poseidon, the name of one scheme, or the file of a plan",
    )
    profile: str = _setting(
        "",
        "UNDERTOW_PROFILE",
        "file for the profile of the first steps, after which the script ends (`undertow plan` sets it)",
    )
    share: bool = _setting(False, "UNDERTOW_SHARE", "on: take turns on the device with other jobs (undertow share)")
    share_name: str = _setting(
        "", "UNDERTOW_SHARE_NAME", "name that other jobs see for this job; default: that of its script"
    )
    share_weight: float = _setting(1.0, "UNDERTOW_SHARE_WEIGHT", "multiple of an equal share of device time")
    share_urgent: bool = _setting(False, "UNDERTOW_SHARE_URGENT", "on: other jobs compute only while this one waits")
    share_socket: str = _setting("", "UNDERTOW_SHARE_SOCKET", "socket of the arbiter; default: one per user and host")
    ddp: bool = _setting(True, "UNDERTOW_DDP", "off: a script's DistributedDataParallel remains that of torch")
    plain: PlainScripts = _setting(
        PlainScripts.AUTO,
        "UNDERTOW_PLAIN",
        "training of single-process scripts on all workers: auto, on (hides RANK from the script), off",
    )
    batch: Batch = _setting(
        Batch.SAME,
        "UNDERTOW_BATCH",
        "batch size of single-process scripts and undertow.torch.distribute(): same (for each worker), "
        "split (among all workers)",
    )
    overlap: bool = _setting(
        False, "UNDERTOW_OVERLAP", "on: start the next forward early, as parallelize() does, in scripts without it"
    )
    seed_per_rank: bool = _setting(
        False,
        "UNDERTOW_SEED_PER_RANK",
        "on: in a single-process script that draws its own batches, each worker draws different ones",
    )
    horovod: Horovod = _setting(
        Horovod.AUTO,
        "UNDERTOW_HOROVOD",
        "`import horovod.torch` imports undertow's module: auto (unless Horovod is installed), on, off",
    )
    autoload: bool = _setting(
        False, "UNDERTOW_AUTOLOAD", "on: under torchrun, prepare scripts that import torch as `undertow run` does"
    )
    trace: str = _setting("", "UNDERTOW_TRACE", "folder for traces of every stage; empty: no traces")
    trace_steps: str = _setting("100", "UNDERTOW_TRACE_STEPS", "steps to trace: 20 (the first 20), 1000:1050 or all")
    live: str = _setting("", "UNDERTOW_LIVE", "socket of a launcher that shows the job live (`undertow run` sets it)")

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
                f"slices of {self.smallest_slice_bytes} to {self.largest_slice_bytes} bytes: the largest must be at "
                "least four times the smallest"
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
        """Limits of slices."""
        return Sizes(self.slice_bytes, self.smallest_slice_bytes, self.largest_slice_bytes, self.slice_time_s)

    @property
    def sharing(self) -> Sharing | None:
        """Options of sharing; None if the job does not share its devices."""
        if not self.share:
            return None
        return Sharing(
            name=self.share_name or Path(sys.argv[0]).stem or "python",
            weight=self.share_weight,
            is_urgent=self.share_urgent,
            socket=self.share_socket,
            is_verbose=self.local_rank == 0,
        )


def read_settings(environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """Merge arguments (None if not given), the environment and the defaults."""
    environ = read_environment() if environ is None else environ
    values: dict[str, Any] = {}
    for item in fields(Settings):
        argument = arguments.pop(item.name, None)
        if argument is not None:
            values[item.name] = _read_argument(item, argument)
        elif is_given(item.name, environ):
            values[item.name] = _parse(item, item.metadata["env"], environ[item.metadata["env"]])
    if arguments:
        raise ConfigError(
            f"unknown setting {next(iter(arguments))!r}; known: {', '.join(f.name for f in fields(Settings))}"
        )
    return Settings(**values)


def is_given(name: str, environ: Mapping[str, str]) -> bool:
    """Whether the environment has a value for this setting."""
    return environ.get(Settings.__dataclass_fields__[name].metadata["env"], "") != ""


class Origin(enum.Enum):
    """Origin of a setting's value."""

    ARGUMENT = "argument"
    VARIABLE = "variable"
    DEFAULT = "default"


@dataclass(frozen=True)
class ResolvedSetting:
    """Value of one setting as text, with its origin."""

    name: str
    variable: str
    value: str
    origin: Origin
    error: str = ""  # why the value is refused


def resolve_settings(environ: Mapping[str, str] | None = None, **arguments: Any) -> list[ResolvedSetting]:
    """Return every setting as `read_settings` would find it, including values that it would refuse."""
    environ = read_environment() if environ is None else environ
    return [_resolve(item, environ, arguments.get(item.name)) for item in fields(Settings)]


def _resolve(item: Field[Any], environ: Mapping[str, str], argument: Any) -> ResolvedSetting:
    variable = item.metadata["env"]
    if argument is not None:
        return ResolvedSetting(item.name, variable, _show(argument), Origin.ARGUMENT)
    text = environ.get(variable, "")
    if text == "":
        return ResolvedSetting(item.name, variable, _show(item.default), Origin.DEFAULT)
    try:
        value = _show(_parse(item, variable, text))
    except ConfigError as error:
        return ResolvedSetting(item.name, variable, text, Origin.VARIABLE, str(error))
    return ResolvedSetting(item.name, variable, value, Origin.VARIABLE)


_WORDS = {"on": True, "1": True, "true": True, "yes": True, "off": False, "0": False, "false": False, "no": False}


def _read_argument(item: Field[Any], value: Any) -> Any:
    """Read an argument.  Words of choices and switches are accepted as in variables, and also True and False."""
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
    """Refuse a value that is not UTF-8, because it cannot be sent as text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{variable} is not text in UTF-8") from None


def table() -> list[tuple[str, str, str]]:
    """Return (variable, default, help) of every setting, for the help text."""
    return [(f.metadata["env"], _show(f.default), f.metadata["help"]) for f in fields(Settings)]


def _show(value: object) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    return str(value) if not isinstance(value, bool) else "on" if value else "off"
