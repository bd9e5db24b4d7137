"""Options that several commands have, written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undertow import bounds
from undertow.cli.figures import figure

TraceFolder = Annotated[
    Path | None,
    typer.Option("--trace", help="Record every stage of the first steps here: see undertow report.", metavar="DIR"),
]
TraceSteps = Annotated[
    str | None,
    typer.Option("--trace-steps", help="Which steps: 20 (the first), 1000:1050 or all; else 100.", metavar="N"),
]
Live = Annotated[
    bool, typer.Option("--live", help="A dashboard in place of the output; in a log, a line now and then.")
]
LivePort = Annotated[
    int | None,
    figure(
        "--live-port",
        bounds=bounds.ANY_PORT,
        help="Serve the same as a page on this port of 127.0.0.1; 0: any.",
        metavar="P",
    ),
]
