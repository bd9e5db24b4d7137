"""Options that several commands share, and the function that makes every option.

In: the names of an option, its help and, for a number, its `Bounds`.  Out: an option of typer; a number out of range
ends the command with one line.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from undertow import bounds
from undertow.bounds import Bounds
from undertow.errors import ConfigError


class InvalidNumber(Exception):
    """Error about a number that is not allowed.  Not a `ValueError`, because typer would drop its message."""

    def format_message(self) -> str:
        return str(self)


class NumberParser:
    """Parser of a number option; typer calls it with the text, or with the default."""

    def __init__(self, option: str, bounds: Bounds) -> None:
        self.option = option
        self.bounds = bounds
        self.__name__ = "number"

    def __call__(self, value: Any) -> Any:
        try:
            if isinstance(value, str):
                return self.bounds.parse(self.option, value)
            return self.bounds.check(self.option, value)
        except ConfigError as error:
            raise InvalidNumber(str(error)) from None


def option(usage: str, help: str, *, bounds: Bounds | None = None, panel: str | None = None) -> Any:
    """Make an option of typer from its names and value as the help shows them, such as `-n --nproc-per-node N`.

    An option with `bounds` takes a number.
    """
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    metavar = words[-1] if len(words) > len(names) else None
    parser = None if bounds is None else NumberParser(names[0], bounds)
    return typer.Option(*names, help=help, metavar=metavar, parser=parser, rich_help_panel=panel)


# Options that the help shows in panels of their own
recording = functools.partial(option, panel="Traces and live view")
sharing = functools.partial(option, panel="Sharing devices with other jobs")

# How to run

Debug = Annotated[bool, option("--debug", "Show the full traceback of an error.")]
ScriptArguments = Annotated[
    list[str] | None, typer.Argument(help="Pass everything after SCRIPT to the script.", metavar="ARGS")
]
QuietRanks = Annotated[bool, option("--quiet-ranks", "Show only rank 0's output, and the error of a rank that fails.")]
ResultsFile = Annotated[
    Path | None, option("--out FILE.json", "Write the results to this file, with a picture and a page beside it.")
]

# Traces and live view

TraceFolder = Annotated[
    Path | None, recording("--trace DIR", "Record a trace of the first steps in this folder; see undertow report.")
]
TraceSteps = Annotated[
    str | None,
    recording("--trace-steps STEPS", "Record these steps: 20 (the first 20), 1000:1050 or all. Default: 100."),
]
Live = Annotated[
    bool, recording("--live", "Show a dashboard instead of the output; in a log file, a line every 5 seconds.")
]
LivePort = Annotated[
    int | None,
    recording(
        "--live-port PORT",
        "Serve the dashboard as a page on this port of 127.0.0.1; 0 takes any free port.",
        bounds=bounds.ANY_PORT,
    ),
]

# Measurements

ZooBatch = Annotated[
    int | None,
    option(
        "--batch N", "Train N samples per host and step. Default: the model's published batch.", bounds=bounds.BATCH
    ),
]
LinkSpeeds = Annotated[
    str, option("--bandwidth SPEED,...", "Limit every link to these speeds, before scaling, such as 1,2,4,10gbit.")
]
Scale = Annotated[
    float | None,
    option(
        "--scale FACTOR",
        "Divide bandwidths and tensor sizes by this factor, so that a small machine can emulate fast links. "
        "Default: 10; 1 for models that really compute.",
        bounds=bounds.SCALE,
    ),
]
Slowdown = Annotated[
    float,
    option(
        "--slowdown FACTOR",
        "Slow devices and links down by this factor, so that a small machine can emulate more hosts.",
        bounds=bounds.SLOWDOWN,
    ),
]
Rounds = Annotated[int, option("--rounds N", "Measure each system or arrangement in N laps.", bounds=bounds.ROUNDS)]
Lap = Annotated[float, option("--lap S", "Measure for S seconds per lap, at least 4 steps.", bounds=bounds.LAP_S)]
Unshaped = Annotated[
    bool, option("--unshaped", "Use loopback instead of emulated hosts: needs no root, but limits no link.")
]

# Jobs that share devices

Weights = Annotated[
    str | None,
    sharing("--weights W,...", "Divide device time among the jobs in this ratio, such as 1,2. Default: equal shares."),
]
Urgent = Annotated[
    int | None,
    sharing("--urgent N", "Let other jobs compute only while job N (the first is 0) waits.", bounds=bounds.JOB),
]
