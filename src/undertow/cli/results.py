"""What commands that make points have in common: lists on the command line, and what is shown and written."""

from __future__ import annotations

from pathlib import Path

from undertow.bounds import HOSTS
from undertow.cli.progress import open_console
from undertow.errors import ConfigError
from undertow.files import write_file
from undertow.launch.speech import notify
from undertow.report.page import make_page
from undertow.report.picture import draw_png
from undertow.report.points import Results, write_results
from undertow.report.safe_text import Text
from undertow.report.table import make_table


def show_results(results: Results, out: Path | None) -> None:
    console = open_console()
    if results.points:
        console.print(make_table(results.points))
    for note in results.notes:
        console.print(Text(note))
    noisy = [point for point in results.points if point.is_noisy]
    if noisy:
        notify(f"this machine was too noisy for {len(noisy)} of {len(results.points)} points: do not trust those")
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


def split_names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def read_counts(text: str) -> list[int]:
    if not split_names(text):
        raise ConfigError(f"--hosts {text!r} is not a number of hosts, such as 4 or 2,4,8")
    return [HOSTS.parse("--hosts", part) for part in split_names(text)]


def check_file(out: Path | None) -> None:
    """Now, not after an hour."""
    if out is None:
        return
    if out.suffix != ".json":
        raise ConfigError(f"--out {out}: give it the ending .json; the picture and the page take its name")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: the folder {out.parent} is not there")
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder: give the name of a file")
