"""`undertow report`: shows where the time of a step went, in words and as a page."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.options import Debug, option
from undertow.cli.progress import open_progress
from undertow.cli.results import check_output
from undertow.errors import ConfigError, UndertowError
from undertow.files import replace_file, write_whole
from undertow.launch.launcher_output import notify
from undertow.observe.report.step_page import make_step_page
from undertow.observe.timeline.analysis import Analysis, Study, study
from undertow.observe.timeline.run_trace import name_steps
from undertow.observe.timeline.trace_reader import read_trace
from undertow.observe.trace.merging import merge
from undertow.plain_text import clean_json, clean_lines
from undertow.progress import Progress

PAGE = "report.html"


_Folder = Annotated[Path, typer.Argument(help="Read the traces of all ranks in this folder.", metavar="DIR")]
_Out = Annotated[Path | None, option("--out FILE", f"Write the page to this file. Default: {PAGE} in DIR.")]
_Step = Annotated[int | None, option("--step N", "Show step N first, instead of the median one.", bounds=bounds.STEP)]


def report(
    folder: _Folder,
    out: _Out = None,
    step: _Step = None,
    is_json: Annotated[bool, option("--json", "Print the figures as JSON instead of words.")] = False,
    is_open: Annotated[bool, option("--open", "Open the page in a browser.")] = False,
    debug: Debug = False,
) -> int:
    """Show where the time of a step went, and write a page about it.

    `undertow run --trace DIR` writes the traces; copy those of several hosts into one folder.

    Example: undertow report trace

    Example: undertow report trace --step 40 --out step-40.html
    """
    with one_line_errors("undertow report", debug=debug):
        page = out or folder / PAGE
        _check(folder, page)
        with open_progress() as progress:
            found = _study(folder, step, progress)
            progress.say("making the page")
            _write(page, make_step_page(found), is_private=out is None)  # private, as the traces beside it are
            progress.say("merging the traces for viewers")
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


def describe(analysis: Analysis) -> list[str]:
    """List the sentences of the page: the summary, what is missing, notes and advice."""
    lines = list(analysis.summary)
    lines += [f"missing: {gap}" for gap in analysis.missing]
    lines += [f"note: {note}" for note in analysis.notes]
    lines += [f"advice: {one.title}. {one.reason}" for one in analysis.advice]
    return lines


def _check(folder: Path, page: Path) -> None:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder} {what}: give the folder that `undertow run --trace` wrote to")
    check_output("--out", page)


def _study(folder: Path, step: int | None, progress: Progress) -> Study:
    trace = read_trace(folder, progress)
    if trace is None:
        raise UndertowError(f"there is no trace in {folder}: write one with `undertow run --trace {folder} train.py`")
    progress.say("analysing the steps")
    found = study(trace, step)
    if step is not None and step not in found.steps.complete:
        complete = found.steps.complete
        raise ConfigError(
            f"--step {step} was not recorded by all ranks: "
            + (f"choose one of {name_steps(complete)}" if complete else "no step was")
        )
    return found


def _write(page: Path, text: str, *, is_private: bool) -> None:
    """Write the page completely or not at all, because half a page would look broken."""
    try:
        if is_private:
            with replace_file(page) as file:
                file.write(text.encode())
        else:
            write_whole(page, text.encode())
    except OSError as error:
        raise UndertowError(f"the page {page} cannot be written: {error.strerror}") from None


def _merge(folder: Path) -> None:
    """Merge the traces for viewers; the page does not need them, so an error is only printed."""
    try:
        merge(folder)
    except OSError as error:
        notify(f"the traces in {folder} could not be merged for viewers: {error.strerror}")
