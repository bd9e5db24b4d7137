"""`undertow report`: where the time of a step went, as a page and in words."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.figures import figure
from undertow.cli.progress import open_watch
from undertow.errors import ConfigError, UndertowError
from undertow.files import replace_file, write_whole
from undertow.launch.speech import notify
from undertow.plain_text import clean_json, clean_lines
from undertow.report.step_page import make_step_page
from undertow.timeline.analysis import Analysis, Study, study
from undertow.timeline.reading import read_trace
from undertow.timeline.words import name_steps
from undertow.trace.merging import merge
from undertow.watch import Watch

PAGE = "report.html"


def report(
    folder: Annotated[Path, typer.Argument(help="Where the traces of all ranks are.", metavar="DIR")],
    out: Annotated[Path | None, typer.Option("--out", help=f"The page; else {PAGE} in DIR.", metavar="FILE")] = None,
    step: Annotated[
        int | None, figure("--step", bounds=bounds.STEP, help="Show this step first, instead of the median one.")
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of words.")] = False,
    is_open: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> int:
    """Say where the time of a step went, and write a page to look at.

    Traces are written by `undertow run --trace DIR`; copy those of several hosts into one folder.

    Example: undertow report trace

    Example: undertow report trace --step 40 --out step-40.html
    """
    with one_line_errors("undertow report", debug=debug):
        page = out or folder / PAGE
        _check(folder, page)
        with open_watch() as watch:
            found = _study(folder, step, watch)
            watch.say("making the page")
            _write(page, make_step_page(found), is_private=out is None)  # as its traces are
            watch.say("putting the traces together for viewers")
            _merge(folder)
        if is_json:
            print(clean_json(found.analysis.to_json()))
        else:
            print(clean_lines("\n".join(describe(found.analysis))))
        sys.stdout.flush()
        notify(f"written: {page}")
        if is_open:
            webbrowser.open(page.resolve().as_uri())
        return 0
    raise AssertionError("one_line_errors ends the command")


def describe(analysis: Analysis) -> list[str]:
    """The summary, what is missing, and the advice: what the page says in words."""
    lines = list(analysis.summary)
    lines += [f"missing: {gap}" for gap in analysis.missing]
    lines += [f"note: {note}" for note in analysis.notes]
    lines += [f"advice: {one.title}. {one.reason}" for one in analysis.advice]
    return lines


def _check(folder: Path, page: Path) -> None:
    if not folder.is_dir():
        what = "a file" if folder.exists() else "not there"
        raise ConfigError(f"{folder} is {what}: give the folder that `undertow run --trace` wrote to")
    if not page.parent.is_dir():
        raise ConfigError(f"--out {page}: the folder {page.parent} is not there")
    if page.is_dir():
        raise ConfigError(f"--out {page} is a folder: give the name of a file")


def _study(folder: Path, step: int | None, watch: Watch) -> Study:
    trace = read_trace(folder, watch)
    if trace is None:
        raise UndertowError(f"there is no trace in {folder}: write one with `undertow run --trace {folder} train.py`")
    watch.say("looking at the steps")
    found = study(trace, step)
    if step is not None and step not in found.steps.complete:
        complete = found.steps.complete
        raise ConfigError(
            f"--step {step} is not a step that all ranks have recorded: "
            + (f"there are {name_steps(complete)}" if complete else "there is none at all")
        )
    return found


def _write(page: Path, text: str, *, is_private: bool) -> None:
    """Whole or not at all: a page that is cut off would look like a broken one."""
    try:
        if is_private:
            with replace_file(page) as file:
                file.write(text.encode())
        else:
            write_whole(page, text.encode())
    except OSError as error:
        raise UndertowError(f"cannot write the page {page}: {error.strerror}") from None


def _merge(folder: Path) -> None:
    """For viewers; the page is complete without."""
    try:
        merge(folder)
    except OSError as error:
        notify(f"the traces of {folder} are not put together for viewers: {error.strerror}")
