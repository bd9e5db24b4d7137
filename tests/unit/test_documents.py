"""The documents name only pages, files and modules that exist, and draw the tiers as they are."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import undertow
from tests.support.tiers import TIERS

SOURCE = Path(undertow.__file__).parent
ROOT = SOURCE.parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
FOLDERS = ("benchmarks", "docs", "examples", "scripts", "src", "tests")
FILES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
READERS_FILES = {"train.py"}  # the reader's own script
# Events of a trace, and the group of entry points.
NOT_IMPORTED = {"undertow.clock", "undertow.end", "undertow.link", "undertow.table", "undertow.systems"}


def find_missing(page: Path, text: str) -> Iterator[str]:
    """Yield the links, paths and dotted names of this page that lead nowhere."""
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in link and not (page.parent / link).exists():
            yield link
    for path in re.findall(r"`([\w.-]+/[\w./-]*)`", text):
        folder = path.partition("/")[0]
        base = ROOT if folder in FOLDERS else SOURCE
        if (base / folder).is_dir() and not (base / path).exists():
            yield path
    for name in re.findall(r"`([\w.-]+\.py)`", text):
        if name not in FILES | READERS_FILES:
            yield name
    for name in set(re.findall(r"(?<![\w./-])undertow(?:\.[A-Za-z_]\w*)+", text)) - NOT_IMPORTED:
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            yield name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    assert list(find_missing(page, page.read_text())) == []


@pytest.mark.parametrize(
    "text",
    [
        "[a](nowhere.md)",
        "[a](nowhere.md#b)",
        "`src/undertow/nowhere.py`",
        "`plan/nowhere.py`",
        "`nowhere.py`",
        "undertow.nowhere",
        "undertow.init.a",
    ],
)
def test_what_is_not_there_is_found(text: str) -> None:
    assert len(list(find_missing(ROOT / "docs" / "README.md", text))) == 1


@pytest.mark.parametrize("page", ["tour.md", "architecture.md"])
def test_every_file_of_the_source_that_a_page_names_is_there(page: str) -> None:
    named = set(re.findall(r"`([a-z_/]+\.py)`", (ROOT / "docs" / page).read_text()))
    assert named
    assert not [name for name in named if not (SOURCE / name).is_file()]


def read_tiers(picture: str) -> dict[str, list[str]]:
    """Return the packages of each tier of the picture, in the order in which they stand there."""
    tiers = {}
    for line in picture.strip().splitlines():
        tier, *columns = re.split(r"  +", line)
        names = []
        for column in columns:
            folder, _, listed = column.rstrip("}").partition("{")
            names += [folder + name for name in listed.split()] if listed else [folder]
        tiers[tier] = ["" if name == "undertow" else name.replace("/", ".") for name in names]
    return tiers


def test_the_picture_of_the_tiers_is_what_the_test_of_imports_has() -> None:
    [picture] = re.findall(r"```\n(commands .*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL)
    drawn = read_tiers(picture)
    assert list(drawn) == list(reversed(TIERS))
    assert drawn == {tier: collapse(reversed(packages)) for tier, packages in TIERS.items()}


def collapse(packages: Iterable[str]) -> list[str]:
    """Return the packages without those inside them, which the picture does not show."""
    depth = {"engine": 2, "observe": 2, "tools": 2}
    heads = (".".join(package.split(".")[: depth.get(package.split(".")[0], 1)]) for package in packages)
    return list(dict.fromkeys(heads))
