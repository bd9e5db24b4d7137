"""Text from outside is printed as text: nothing in it reaches the terminal as a command."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

import undertow
from undertow.launch.launcher_output import print_lines
from undertow.observe.report.safe_text import Text
from undertow.observe.report.table import start_table
from undertow.plain_text import clean, clean_json, clean_lines, list_words, name_some

EVIL = "\x1b]0;title\x07\x1b[31mred\x1b[2J\r\b\u202eab\x9b1m"
COMMANDS = set("\x1b\x07\r\b\u202e\x9b")


def print_all(*shown: Any) -> str:
    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as captured:
        for one in shown:
            console.print(one)
    return captured.get()


def test_words_stay_and_commands_go() -> None:
    assert clean("weiß  0.5 ms") == "weiß  0.5 ms"
    assert clean(EVIL).startswith("red")
    assert not COMMANDS & set(clean(EVIL))
    assert clean_lines(f"one\ntwo {EVIL}").startswith("one\ntwo red")


def test_json_is_the_same_and_safe() -> None:
    value = {"name": EVIL + "\U000e0001 \U0001f600", "figures": [1.5, None]}
    data = msgspec.json.format(msgspec.json.encode(value), indent=2)
    shown = clean_json(data)
    assert json.loads(shown) == value
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "\U0001f600" in shown


def test_tables_and_lines_are_safe() -> None:
    table = start_table(EVIL, EVIL)
    table.add_column(Text(EVIL))
    table.add_row(Text(EVIL, "bold"))
    shown = print_all(table, Text(EVIL), Text.assemble(("x", "bold"), EVIL), Text("x").append(EVIL))
    assert not COMMANDS & set(shown)
    assert shown.count("red") == 7


def test_every_text_of_rich_is_the_safe_one() -> None:
    folder = Path(undertow.__file__).parent
    users = [path for path in folder.rglob("*.py") if re.search(r"\brich\.text\b", path.read_text())]
    assert users == [folder / "observe" / "report" / "safe_text.py"]


def test_output_of_the_launcher_is_safe(capfd: pytest.CaptureFixture[str]) -> None:
    print_lines(f"undertow: rank 1 failed: {EVIL}", "second\nthird")
    said = capfd.readouterr().err
    assert said.splitlines()[1:] == ["second", "third"]
    assert not COMMANDS & set(said)
    assert said.endswith(os.linesep)


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "'0'"), (2, "'0' and '1'"), (3, "'0', '1' and '2'"), (5, "'0', '1', '2' and 2 more")],
)
def test_a_few_are_named_and_the_rest_is_counted(count: int, words: str) -> None:
    assert name_some([str(number) for number in range(count)], 3) == words


def test_a_list_without_a_limit_is_whole() -> None:
    assert list_words("abcd") == "a, b, c and d"
