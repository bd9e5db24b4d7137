"""Options that several commands share, options that take a number within a range, and the panels of long help texts.

In: the names of an option and its `Bounds`.  Out: an option of typer; a number out of range ends the command with one
line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from undertow import bounds
from undertow.bounds import Bounds
from undertow.errors import ConfigError

# Panels that group options in the help.
RECORDING = "Traces and live view"
SHARING = "Sharing devices with other jobs"


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


def number_option(*names: str, bounds: Bounds, help: str, metavar: str = "N", panel: str | None = None) -> Any:
    parser = NumberParser(names[0], bounds)
    return typer.Option(*names, help=help, metavar=metavar, parser=parser, rich_help_panel=panel)


TraceFolder = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        help="Record a trace of the first steps in this folder; see undertow report.",
        metavar="DIR",
        rich_help_panel=RECORDING,
    ),
]
TraceSteps = Annotated[
    str | None,
    typer.Option(
        "--trace-steps",
        help="Record these steps: 20 (the first 20), 1000:1050 or all. Default: 100.",
        metavar="STEPS",
        rich_help_panel=RECORDING,
    ),
]
Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Show a dashboard instead of the output; in a log file, a line every 5 seconds.",
        rich_help_panel=RECORDING,
    ),
]
LivePort = Annotated[
    int | None,
    number_option(
        "--live-port",
        bounds=bounds.ANY_PORT,
        help="Serve the dashboard as a page on this port of 127.0.0.1; 0 takes any free port.",
        metavar="PORT",
        panel=RECORDING,
    ),
]
ScriptArguments = Annotated[
    list[str] | None, typer.Argument(help="Pass everything after SCRIPT to the script.", metavar="ARGS")
]
QuietRanks = Annotated[
    bool, typer.Option("--quiet-ranks", help="Show only rank 0's output, and the error of a rank that fails.")
]
ResultsFile = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Write the results to this file, with a picture and a page beside it.", metavar="FILE.json"
    ),
]
ZooBatch = Annotated[
    int | None,
    number_option(
        "--batch", bounds=bounds.BATCH, help="Train N samples per host and step. Default: the model's published batch."
    ),
]
LinkSpeeds = Annotated[
    str,
    typer.Option(
        "--bandwidth",
        help="Limit every link to these speeds, before scaling, such as 1,2,4,10gbit.",
        metavar="SPEED,...",
    ),
]
Scale = Annotated[
    float | None,
    number_option(
        "--scale",
        bounds=bounds.SCALE,
        help="Divide bandwidths and tensor sizes by this factor, so that a small machine can emulate fast links. "
        "Default: 10; 1 for models that really compute.",
        metavar="FACTOR",
    ),
]
Rounds = Annotated[
    int, number_option("--rounds", bounds=bounds.ROUNDS, help="Measure each system or arrangement in N laps.")
]
Lap = Annotated[
    float,
    number_option("--lap", bounds=bounds.LAP_S, help="Measure for S seconds per lap, at least 4 steps.", metavar="S"),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="Divide device time among the jobs in this ratio, such as 1,2. Default: equal shares.",
        metavar="W,...",
        rich_help_panel=SHARING,
    ),
]
Urgent = Annotated[
    int | None,
    number_option(
        "--urgent",
        bounds=bounds.JOB,
        help="Let other jobs compute only while job N (the first is 0) waits.",
        panel=SHARING,
    ),
]
Unshaped = Annotated[
    bool, typer.Option("--unshaped", help="Use loopback instead of emulated hosts: needs no root, but limits no link.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")]
