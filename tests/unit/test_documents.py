"""What the documents name is there: pages, files, and what can be imported."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import undertow

SOURCE = Path(undertow.__file__).parent
ROOT = SOURCE.parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
FOLDERS = ("benchmarks", "docs", "examples", "scripts", "src", "tests")
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
