"""Settings: arguments first, then variables, then defaults; invalid values are refused with a reason."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from undertow.errors import ConfigError
from undertow.settings import Checksum, Horovod, Origin, Priority, Settings, read_settings, resolve_settings, table


def test_defaults_hold_without_arguments_and_variables() -> None:
    assert read_settings({}) == Settings()


def test_variables_override_defaults() -> None:
    settings = read_settings({"RANK": "2", "WORLD_SIZE": "4", "UNDERTOW_START_TIMEOUT": "7.5", "UNDERTOW_TOKEN": "x"})
    assert (settings.rank, settings.world_size, settings.start_timeout_s, settings.token) == (2, 4, 7.5, "x")


@pytest.mark.parametrize(("text", "value"), [("off", False), ("0", False), ("No", False), ("on", True), ("TRUE", True)])
def test_a_switch_is_read_from_words(text: str, value: bool) -> None:
    assert read_settings({"UNDERTOW_WAIT_FREE": text}).wait_free is value


def test_a_choice_is_read_in_any_case() -> None:
    assert read_settings({"UNDERTOW_PRIORITY": "Push"}).priority is Priority.PUSH


@pytest.mark.parametrize(("text", "value"), [("auto", Horovod.AUTO), ("On", Horovod.ON), ("0", Horovod.OFF)])
def test_a_choice_that_is_a_switch_too_knows_its_words(text: str, value: Horovod) -> None:
    assert read_settings({"UNDERTOW_HOROVOD": text}).horovod is value


def test_an_argument_may_be_the_word_of_a_variable() -> None:
    settings = read_settings({}, priority="Push", wait_free="off")
    assert (settings.priority, settings.wait_free) == (Priority.PUSH, False)
    with pytest.raises(ConfigError, match="priority='pull' is not valid for priority: use one of"):
        read_settings({}, priority="pull")


@pytest.mark.parametrize(
    ("argument", "value"),
    [("checksum", True), ("checksum", "on"), ("checksum", Checksum.ON), ("horovod", False), ("trace", Path("/t"))],
)
def test_an_argument_may_be_what_its_word_means(argument: str, value: Any) -> None:
    expected = {"checksum": Checksum.ON, "horovod": Horovod.OFF, "trace": "/t"}
    assert getattr(read_settings({}, **{argument: value}), argument) == expected[argument]


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("trace_steps", 5, "trace_steps 5 is not possible: give text"),
        ("checksum", 3, "checksum 3 is not possible: give one of auto, on, off"),
        ("wait_free", 3, "wait_free 3 is not possible: give True or False"),
        ("master_addr", 5, "master_addr 5 is not possible: give text"),
        ("priority", Horovod.ON, "priority .* is not possible: give one of both, push, off"),
    ],
)
def test_an_argument_of_another_kind_is_refused(argument: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_settings({}, **{argument: value})


def test_arguments_override_variables() -> None:
    assert read_settings({"RANK": "1", "WORLD_SIZE": "4"}, rank=3).rank == 3


def test_an_argument_of_none_counts_as_not_given() -> None:
    assert read_settings({"RANK": "1", "WORLD_SIZE": "4"}, rank=None).rank == 1


def test_an_overridden_variable_is_not_even_read() -> None:
    assert read_settings({"RANK": "nonsense"}, rank=0).rank == 0


def test_empty_variable_counts_as_not_set() -> None:
    assert read_settings({"WORLD_SIZE": ""}).world_size == 1


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "rank 4 is outside of 0 to 3"),
        ({"RANK": "-1"}, "RANK='-1' is not possible: give 0 to 65535"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0' is not possible: give 1 to 65536 workers"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE='many' is not a whole number"),
        ({"UNDERTOW_START_TIMEOUT": "0"}, "UNDERTOW_START_TIMEOUT='0' is not possible: give 0.001 to 1000000 seconds"),
        ({"UNDERTOW_START_TIMEOUT": "soon"}, "UNDERTOW_START_TIMEOUT='soon' is not a number"),
        ({"UNDERTOW_SLICE": "1000"}, "slice of 1000 bytes"),
        ({"UNDERTOW_SMALLEST_SLICE": "0"}, "UNDERTOW_SMALLEST_SLICE='0' is not possible"),
        ({"UNDERTOW_CREDIT": "1048576"}, "two slices of 4194304: .* lower UNDERTOW_SLICE or UNDERTOW_LARGEST_SLICE"),
        ({"UNDERTOW_WAIT_FREE": "maybe"}, "UNDERTOW_WAIT_FREE='maybe' is not a valid bool"),
        ({"UNDERTOW_SHARE_WEIGHT": "0"}, "UNDERTOW_SHARE_WEIGHT='0' is not possible"),
        ({"UNDERTOW_SHARE_WEIGHT": "inf"}, "UNDERTOW_SHARE_WEIGHT='inf' is not possible"),
        ({"UNDERTOW_TOKEN": "\udcff"}, "UNDERTOW_TOKEN is not text in UTF-8"),
        ({"UNDERTOW_PRIORITY": "no"}, "UNDERTOW_PRIORITY='no' is not valid for priority: use one of both, push, off"),
    ],
)
def test_impossible_values_are_refused_in_words(variables: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_settings(variables)


def test_a_job_shares_only_on_request() -> None:
    assert read_settings({}).sharing is None
    assert read_settings({"UNDERTOW_SHARE": "0"}, share_weight=2.0).sharing is None


def test_a_job_that_shares_has_a_name_and_one_verbose_worker_per_host() -> None:
    given = read_settings({"UNDERTOW_SHARE": "1", "UNDERTOW_SHARE_NAME": "night", "LOCAL_RANK": "1"}).sharing
    assert given is not None
    assert (given.name, given.is_verbose) == ("night", False)
    by_itself = read_settings({}, share=True).sharing
    assert by_itself is not None
    assert by_itself.name == Path(sys.argv[0]).stem
    assert by_itself.is_verbose


def test_unknown_argument_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'rnak'; known: .*rank"):
        read_settings({}, rnak=1)


def test_table_has_every_setting_once() -> None:
    variables = [variable for variable, _, _ in table()]
    assert len(variables) == len(set(variables)) == len(dataclasses.fields(Settings))
    assert all(meaning for _, _, meaning in table())


def test_every_setting_has_the_origin_of_its_value() -> None:
    environ = {"UNDERTOW_PRIORITY": "Push", "UNDERTOW_TRACE": "", "RANK": "nonsense"}
    found = {source.name: source for source in resolve_settings(environ, rank=3, token=None)}
    assert list(found) == [item.name for item in dataclasses.fields(Settings)]
    assert (found["rank"].value, found["rank"].origin) == ("3", Origin.ARGUMENT)
    assert (found["priority"].value, found["priority"].origin) == ("push", Origin.VARIABLE)
    assert found["trace"].origin is found["token"].origin is Origin.DEFAULT
    assert (found["wait_free"].variable, found["wait_free"].value) == ("UNDERTOW_WAIT_FREE", "on")


def test_a_value_that_would_be_refused_is_listed_with_the_reason() -> None:
    (bad,) = [source for source in resolve_settings({"UNDERTOW_SLICE": "big"}) if source.error]
    assert (bad.name, bad.value, bad.origin) == ("slice_bytes", "big", Origin.VARIABLE)
    with pytest.raises(ConfigError, match=bad.error):
        read_settings({"UNDERTOW_SLICE": "big"})
