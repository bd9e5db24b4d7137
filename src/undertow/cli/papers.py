"""`undertow papers`: the published figures beside simulated ones."""

from __future__ import annotations

from typing import Annotated

import typer

from undertow.cli.errors import one_line_errors
from undertow.cli.progress import open_watch
from undertow.sim.papers import describe, make_sections


def papers(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> int:
    """Simulate what Poseidon (ATC 2017) and P3 (MLSys 2019) measured, and print both, as the tables of docs/papers.md.

    Example: undertow papers
    """
    with one_line_errors("undertow papers", debug=debug):
        with open_watch() as watch:
            sections = list(make_sections(watch))
        for section in sections:
            print(section.to_markdown())
        print(describe(sections))
        return 0
    raise AssertionError("one_line_errors ends the command")
