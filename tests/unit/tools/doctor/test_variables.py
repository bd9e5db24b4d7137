"""Settings and variables as the doctor finds them: where each came from, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from undertow.settings import table
from undertow.tools.doctor.findings import Finding, Level
from undertow.tools.doctor.variables import collect_variables, judge_variables, select_common


def judge(environ: dict[str, str], **arguments: Any) -> list[Finding]:
    return judge_variables(collect_variables(environ, outer=environ, **arguments))


def test_settings_at_their_defaults_are_one_line() -> None:
    (finding,) = judge({"PATH": "/bin"})
    assert (finding.level, finding.text.split(" of ")[0]) == (Level.OK, "none")


@pytest.mark.parametrize(
    ("environ", "level", "words", "advice"),
    [
        (
            {"UNDERTOW_SLICE": "big"},
            Level.FAILURE,
            "UNDERTOW_SLICE='big' is not a whole number",
            "unset UNDERTOW_SLICE",
        ),
        ({"MASTER_PORT": "http"}, Level.FAILURE, "MASTER_PORT='http'", "unset MASTER_PORT"),
        ({"RANK": "first"}, Level.WARNING, "RANK='first'", "unset RANK"),
        ({"RANK": "3"}, Level.WARNING, "rank 3 is outside of 0 to 0", "undertow run sets its own"),
        ({"UNDERTOW_CREDIT": "1048576"}, Level.FAILURE, "less than two slices", "undertow env"),
        ({"UNDERTOW_ADRESS": "x"}, Level.WARNING, "UNDERTOW_ADRESS is set", "did you mean UNDERTOW_ADDRESS?"),
        ({"UNDERTOW_XYZZY_PLUGH": "x"}, Level.WARNING, "UNDERTOW_XYZZY_PLUGH is set", "unset it"),
    ],
)
def test_bad_variables_are_named(environ: dict[str, str], level: Level, words: str, advice: str) -> None:
    (finding,) = judge(environ)
    assert finding.level is level
    assert words in finding.text
    assert advice in finding.advice


def test_every_bad_variable_is_named_not_only_the_first() -> None:
    assert len(judge({"UNDERTOW_SLICE": "big", "UNDERTOW_PRIORITY": "maybe", "UNDERTOW_TOKENS": "x"})) == 3


def test_settings_know_where_they_came_from() -> None:
    environ = {"UNDERTOW_OVERLAP": "on", "UNDERTOW_BATCH": "split"}
    facts = collect_variables(environ, outer={"UNDERTOW_BATCH": "split"}, master_port=7)
    found = {setting.name: (setting.value, setting.origin) for setting in facts.settings}
    assert found["overlap"] == ("on", "argument")  # an option of the command put it there
    assert found["batch"] == ("split", "variable")
    assert found["master_port"] == ("7", "argument")
    assert found["ddp"] == ("on", "default")


def test_a_token_is_never_among_the_facts() -> None:
    environ = {"UNDERTOW_TOKEN": "hush-hush"}
    facts = collect_variables(environ, outer=environ)
    assert b"hush" not in msgspec.json.encode(facts)
    assert {setting.value for setting in facts.settings if setting.name == "token"} == {"set, 9 characters"}


def test_only_what_must_be_alike_is_compared() -> None:
    common = select_common(collect_variables({}, outer={}))
    assert {"UNDERTOW_BATCH", "UNDERTOW_PLAN", "UNDERTOW_OVERLAP"} <= set(common)
    assert not {"RANK", "UNDERTOW_TOKEN", "UNDERTOW_ADDRESS", "MASTER_ADDR"} & set(common)
    internal = {variable for variable, _, text in table() if "` sets it)" in text}
    assert {"UNDERTOW_LIVE", "UNDERTOW_LOSS_NOTE", "UNDERTOW_PROFILE"} <= internal
    assert not internal & set(common)
