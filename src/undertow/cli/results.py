"""Common parts of commands that measure or simulate: lists on the command line, tables and files of results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from undertow.bounds import HOSTS, WEIGHT
from undertow.cli.progress import open_console
from undertow.errors import ConfigError
from undertow.files import write_file
from undertow.launch.launcher_output import notify
from undertow.observe.report.page import make_page
from undertow.observe.report.picture import draw_png
from undertow.observe.report.points import Results, write_results
from undertow.observe.report.safe_text import Text
from undertow.observe.report.table import make_table
from undertow.units import parse_numbers


def show_results(results: Results, out: Path | None) -> None:
    console = open_console()
    if results.points:
        console.print(make_table(results.points))
    for note in results.notes:
        console.print(Text(note))
    noisy = [point for point in results.points if point.is_noisy]
    if noisy:
        notify(f"{len(noisy)} of {len(results.points)} points are too noisy to trust: was this machine busy?")
    if out is None or not results.points:
        return
    write_results(results, out)
    written = [out, out.with_suffix(".html")]
    write_file(written[1], make_page(results).encode())
    try:
        draw_png(results.points, out.with_suffix(".png"))
        written.append(out.with_suffix(".png"))
    except ConfigError as error:
        notify(str(error))
    notify(f"written: {', '.join(map(str, written))}")


def read_command_line() -> str:
    """Return the command that the user typed, for a file of results."""
    return shlex.join(["undertow", *sys.argv[1:]])


def split_names(text: str) -> tuple[str, ...]:
    """Split names at commas, each once."""
    return tuple(dict.fromkeys(split_list(text)))


def split_list(text: str) -> list[str]:
    """Split names at commas, and keep repeated ones."""
    return [name.strip() for name in text.split(",") if name.strip()]


def read_counts(text: str) -> list[int]:
    if not split_names(text):
        raise ConfigError(f"--hosts {text!r} is not a number of hosts, such as 4 or 2,4,8")
    return [HOSTS.parse("--hosts", count) for count in split_names(text)]


def read_terms(weights: str | None, urgent: int | None, models: Sequence[str]) -> list[tuple[float, bool]]:
    """Return for each job that shares devices its weight, and whether it is urgent."""
    names = ", ".join(f"{number} ({model})" for number, model in enumerate(models))
    shares = (1.0,) * len(models) if weights is None else parse_numbers(weights, "--weights", WEIGHT)
    if len(shares) != len(models):
        raise ConfigError(f"--weights has {len(shares)} numbers for {len(models)} jobs: give one for each of {names}")
    if urgent is not None and urgent >= len(models):
        raise ConfigError(f"--urgent {urgent}: the jobs are {names}")
    return [(share, number == urgent) for number, share in enumerate(shares)]


def check_file(out: Path | None) -> None:
    """Refuse a file for results that cannot be written, before an hour of measuring."""
    if out is None:
        return
    if out.suffix != ".json":
        raise ConfigError(f"--out {out}: the name must end with .json; the picture and the page are named after it")
    check_output("--out", out)


def check_output(option: str, path: Path) -> None:
    """Refuse a file that cannot be written."""
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder: give the name of a file")
