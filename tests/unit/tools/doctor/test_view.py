"""The doctor's verdict, exit code and report."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from rich.console import Console

from tests.support.doctor_facts import HEALTHY, A, B, C, among, three
from undertow.tools.doctor.facts import Host, Setting, Variables
from undertow.tools.doctor.findings import Finding, conclude, exit_code, fail, note, ok, warn
from undertow.tools.doctor.view import Report, show, to_json

OK, NOTE, WARNING, FAILURE = ok("s", "fine"), note("s", "hm"), warn("s", "slow", "do x"), fail("s", "broken", "do y")


@pytest.mark.parametrize(
    ("findings", "hosts", "code", "words"),
    [
        ([OK, NOTE], 1, 0, "training would work on this host; no warnings"),
        ([OK, WARNING], 3, 0, "training would work on these 3 hosts; 1 warning"),
        ([WARNING, WARNING], 1, 0, "training would work on this host; 2 warnings"),
        ([FAILURE, WARNING], 1, 1, "training would fail: broken"),
        ([FAILURE, FAILURE], 1, 1, "training would fail: broken (and 1 more failure)"),
        (
            [msgspec.structs.replace(FAILURE, host="b")] * 3,
            2,
            1,
            "training would fail: b: broken (and 2 more failures)",
        ),
    ],
)
def test_the_verdict_is_one_sentence(findings: list[Finding], hosts: int, code: int, words: str) -> None:
    assert conclude(findings, hosts=hosts) == words
    assert exit_code(findings) == code


def render(report: Report, *, width: int = 0, every_setting: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width or 160, force_terminal=bool(width), color_system=None)
    show(report, console, every_setting=every_setting)
    return file.getvalue()


def host(*settings: Setting) -> Host:
    return msgspec.structs.replace(HEALTHY, variables=Variables(list(settings)))


def test_failures_come_last_and_with_what_to_do() -> None:
    lines = render(Report("a", 1, HEALTHY, [FAILURE, OK, WARNING, NOTE])).splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "note", "warning", "->", "failure", "->", "training"]
    assert lines[4:] == ["failure  s  broken", "            -> do y", "training would fail: broken"]


def test_settings_are_shown_with_their_origin_and_defaults_on_demand() -> None:
    own = Setting("plan", "UNDERTOW_PLAN", "dense", "variable"), Setting("address", "UNDERTOW_ADDRESS", "", "default")
    report = Report("a", 1, host(*own), [ok("settings", "1 of 2 set"), ok("z", "last")])
    lines = render(report).splitlines()
    assert lines[1].strip() == "UNDERTOW_PLAN = dense, from the variable"
    assert not any("UNDERTOW_ADDRESS" in line for line in lines)
    assert "UNDERTOW_ADDRESS = (empty), the default" in render(report, every_setting=True)


def test_a_long_line_stays_one_in_a_file_and_is_folded_below_its_text_in_a_terminal() -> None:
    report = Report("a", 1, HEALTHY, [ok("subject", "word " * 60)])
    assert len(render(report).splitlines()) == 2
    folded = render(report, width=80).splitlines()
    assert len(folded) > 4
    assert all(len(line) <= 80 for line in folded)
    assert folded[1].startswith(" " * len("ok       subject  ") + "word")


def test_nothing_in_a_text_is_markup() -> None:
    assert "[red]x[/red] [/]" in render(Report("a", 1, HEALTHY, [ok("s", "[red]x[/red] [/]")]))


def test_the_matrices_have_every_pair_both_ways() -> None:
    report = Report("a", 3, HEALTHY, [OK], [A, B, C], among(3, three()[:2]))
    text = render(report)
    rows = [line.split() for line in text.splitlines() if line.split()[:1] in (["a"], ["b"], ["c"])]
    assert rows == [
        ["a", "-", "0.200", "0.200"],
        ["b", "0.200", "-", "?"],
        ["c", "0.200", "?", "-"],
        ["a", "-", "0.93", "0.93"],
        ["b", "0.94", "-", "?"],
        ["c", "0.94", "?", "-"],
    ]


def test_a_host_that_is_not_the_first_shows_what_is_wrong_and_who_shows_the_rest() -> None:
    report = Report("b", 3, HEALTHY, [OK, WARNING], [A, B, C], among(3, three()), see="a")
    assert render(report).splitlines() == [
        "warning  s  slow",
        "            -> do x",
        "a shows the rest",
        "training would work on these 3 hosts; 1 warning",
    ]


def test_json_has_facts_findings_and_verdict() -> None:
    known = json.loads(to_json(Report("a", 3, HEALTHY, [OK, FAILURE], [A, B, C], among(3, three()))))
    assert known["verdict"] == "training would fail: broken"
    assert known["report"]["findings"][1] == {
        "level": "failure",
        "subject": "s",
        "text": "broken",
        "advice": "do y",
        "host": "",
    }
    assert known["report"]["facts"]["machine"]["cores"] == 8
    assert known["report"]["survey"]["reach"][0][1] == "reached"
