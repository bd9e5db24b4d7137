"""`undertow papers`: published figures beside simulated ones, as the page has them."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import Cli

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"


def test_the_page_has_what_the_command_prints(cli: Cli) -> None:
    result = cli.run("papers")
    assert result.returncode == 0, result.stderr
    printed = result.stdout.splitlines()
    rows = [line for line in printed if line.startswith("|")]
    headings = [line for line in printed if line.startswith("### ")]
    assert len(headings) == 5
    assert len(rows) == 5 * 2 + 24  # two lines of each table are its head
    assert printed[-1].startswith("24 published figures, ")
    written = PAGE.read_text().splitlines()
    missing = [line for line in (*headings, *rows, printed[-1]) if not any(line in other for other in written)]
    assert missing == [], f"run `undertow papers` and put its output into {PAGE.name}"


def test_help_names_the_papers(cli: Cli) -> None:
    result = cli.run("papers", "--help")
    assert result.returncode == 0
    for words in ("Poseidon", "P3", "undertow papers"):
        assert words in result.stdout
