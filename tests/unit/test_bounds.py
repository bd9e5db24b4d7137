"""Every number that can be given has a range, and a number outside it is refused in one line."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import typing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import typer

from undertow import bounds
from undertow.bounds import Bounds
from undertow.cli import COMMANDS, main
from undertow.cli.options import NumberParser
from undertow.errors import ConfigError
from undertow.settings import BOUNDS, Settings, read_settings, resolve_settings

NONSENSE = ("nan", "inf", "-inf", "1e400", "-1e18", "1e18", "9" * 30, "9" * 5000, "many", " ", "0x10", "\x1b[31m5")

# Options that are text, whatever it is.  A new option has to be listed here, or be tested below.
TEXTS = {
    ("bench", "--model"),
    ("bench", "--preset"),
    ("bench", "--systems"),
    ("bottleneck", "--model"),
    ("doctor", "--hosts"),
    ("faults", "--scenario"),
    ("plan", "--model"),
    ("plan", "--policy"),
    ("run", "--master-addr"),
    ("run", "--share-name"),
    ("share bench", "--jobs"),
    ("share bench", "--mode"),
    ("share down", "--socket"),
    ("share run", "--socket"),
    ("share status", "--socket"),
    ("share up", "--socket"),
    ("simulate", "--model"),
    ("simulate", "--share"),
    ("simulate", "--systems"),
}
# Options whose text holds figures, with what else the command needs to get as far as reading them.
FIGURES: dict[tuple[str, str], tuple[str, ...]] = {
    ("bench", "--bandwidth"): (),
    ("bench", "--hosts"): (),
    ("bottleneck", "--iteration"): ("--params", "61.5M"),
    ("bottleneck", "--params"): ("--iteration", "0.25s"),
    ("lab run", "--bandwidth"): ("true",),
    ("lab run", "--trace-steps"): ("true",),
    ("plan", "--bandwidth"): ("--model", "vgg19"),
    ("run", "--trace-steps"): (__file__,),
    ("share bench", "--bandwidth"): (),
    ("share bench", "--ratio"): (),
    ("share bench", "--weights"): (),
    ("simulate", "--bandwidth"): ("--model", "resnet50"),
    ("simulate", "--find-bandwidth"): ("--model", "resnet50"),
    ("simulate", "--find-hosts"): ("--model", "resnet50"),
    ("simulate", "--hosts"): ("--model", "resnet50"),
    ("simulate", "--jitter"): ("--model", "resnet50"),
    ("simulate", "--latency"): ("--model", "resnet50"),
    ("simulate", "--stragglers"): ("--model", "resnet50"),
    ("simulate", "--weights"): ("--model", "resnet50", "--share", "vgg19"),
}


class Option(typing.NamedTuple):
    command: str
    name: str
    kind: Any
    info: Any


def list_options() -> Iterator[Option]:
    for command, (place, _) in COMMANDS.items():
        module, _, attribute = place.partition(":")
        yield from _list_of(command, getattr(importlib.import_module(module), attribute))


def _list_of(command: str, found: Any) -> Iterator[Option]:
    if isinstance(found, typer.Typer):
        for one in found.registered_commands:
            assert one.callback
            yield from _list_of(f"{command} {one.name}", one.callback)
        return
    hints = typing.get_type_hints(found, include_extras=True)
    for name in inspect.signature(found).parameters:
        kind, *rest = typing.get_args(hints[name]) if typing.get_origin(hints[name]) is typing.Annotated else (None,)
        for info in rest:
            if isinstance(info.default, str) and info.default.startswith(
                "-"
            ):  # beside Annotated typer keeps a name there
                yield Option(command, info.default, kind, info)


def _may_be(kind: Any, wanted: type) -> bool:
    return kind is wanted or wanted in typing.get_args(kind)


OPTIONS = list(list_options())
NUMBERS = [option for option in OPTIONS if _may_be(option.kind, int) or _may_be(option.kind, float)]
WORDS = {(option.command, option.name): option for option in OPTIONS if _may_be(option.kind, str)}


# Settings


def test_every_setting_that_is_a_number_has_a_range() -> None:
    numbers = {item.name for item in dataclasses.fields(Settings) if type(item.default) in (int, float)}
    assert numbers == set(BOUNDS)


@pytest.mark.parametrize("item", [item for item in dataclasses.fields(Settings) if item.name in BOUNDS])
def test_a_variable_is_refused_with_its_value_and_range(item: Any) -> None:
    variable = item.metadata["env"]
    for text in NONSENSE:
        with pytest.raises(ConfigError) as refused:
            read_settings({variable: text})
        _check_words(str(refused.value), variable, BOUNDS[item.name])
        (error,) = [source.error for source in resolve_settings({variable: text}) if source.error]
        assert error == str(refused.value)


@pytest.mark.parametrize("name", BOUNDS)
def test_an_argument_is_refused_with_its_value_and_range(name: str) -> None:
    for value in (math.nan, math.inf, -math.inf, 1e18, 10**30, 10**5000, -(10**30), True, "5", b"5", [5]):
        with pytest.raises(ConfigError) as refused:
            read_settings({}, **{name: value})
        _check_words(str(refused.value), name, BOUNDS[name])


@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000, f"1:{'9' * 30}"])
def test_trace_steps_have_a_range_too(text: str) -> None:
    with pytest.raises(ConfigError, match=r"trace steps 9.* is not (possible|a whole number): give 0 to"):
        read_settings({"UNDERTOW_TRACE_STEPS": text})


def test_no_time_out_is_more_than_the_kernel_takes() -> None:
    most_ms = 2 * bounds.TIMEOUT_S.most * 1000
    assert most_ms < 2**31 - 1
    assert int(bounds.TIMEOUT_S.least * 1000) >= 1


# Options


def test_every_option_that_takes_a_number_has_a_range() -> None:
    assert NUMBERS
    loose = [f"{one.command} {one.name}" for one in NUMBERS if not isinstance(one.info.parser, NumberParser)]
    assert not loose, "give these with undertow.cli.options"
    assert all(one.info.parser.option == one.name for one in NUMBERS)


def test_every_option_that_takes_text_is_known() -> None:
    assert set(WORDS) == TEXTS | set(FIGURES)
    assert not TEXTS & set(FIGURES)


@pytest.mark.parametrize("option", NUMBERS, ids=lambda option: f"{option.command} {option.name}")
def test_an_option_is_refused_with_its_value_and_range(option: Option, call: Call) -> None:
    for text in NONSENSE[:: len(NONSENSE) - 1]:  # the parser alone is asked about the rest below
        _check_words(call(option, text), option.name, option.info.parser.bounds)
    for text in NONSENSE:
        with pytest.raises(Exception, match=r" is not .*: give ") as refused:
            option.info.parser(text)
        _check_words(refused.value.format_message(), option.name, option.info.parser.bounds)


@pytest.mark.parametrize(("key", "others"), FIGURES.items(), ids=lambda value: " ".join(value))
def test_a_text_with_figures_is_refused_in_one_line(key: tuple[str, str], others: tuple[str, ...], call: Call) -> None:
    for text in ("nan", "inf", "1e400", "-1", "1e18", "9" * 30, "many", ""):
        line = call(WORDS[key], text, *others)
        assert "trace steps" in line if key[1] == "--trace-steps" else key[1] in line
        assert "\x1b" not in line


def test_a_link_that_takes_hours_to_simulate_is_refused(call: Call) -> None:
    line = call(WORDS["simulate", "--bandwidth"], "100kbit", "--model", "resnet50")
    assert "--bandwidth 100 kbit/s for a simulation is not possible: give 10mbit to 1000gbit" in line


class Call(typing.Protocol):
    def __call__(self, option: Option, text: str, *others: str) -> str: ...


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command that is to be refused; returns the one line that it says."""
    for start in ("bench.measure_in_lab", "share_bench.measure_in_lab", "lab.run_in_lab", "run.launch"):
        monkeypatch.setattr(f"undertow.cli.{start}", lambda *args, **options: pytest.fail("it was not refused"))

    def run(option: Option, text: str, *others: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*option.command.split(), option.name, text, *others])
        said = capfd.readouterr()
        assert (ended.value.code, said.out, said.err.count("\n")) == (2, "", 1), said
        return said.err

    return run


# The rule itself


def test_a_range_holds_its_ends_and_numbers_of_numpy() -> None:
    assert [bounds.PORT.check("--port", value) for value in (1, 65535, np.int64(80))] == [1, 65535, 80]
    assert bounds.TIMEOUT_S.parse("--timeout", " 7.5 ") == 7.5
    assert type(bounds.TIMEOUT_S.check("timeout", np.float32(2))) is float


def test_the_words_name_figure_value_and_range() -> None:
    with pytest.raises(ConfigError, match=r"^--lap nan is not possible: give 0\.001 to 86400 seconds$"):
        bounds.LAP_S.parse("--lap", "nan")
    with pytest.raises(ConfigError, match=r"^RANK='one' is not a whole number: give 0 to 65535$"):
        bounds.RANK.parse("RANK", "one", sign="=")
    with pytest.raises(ConfigError, match=r"^rank True is not a whole number: give 0 to 65535$"):
        bounds.RANK.check("rank", True)
    with pytest.raises(ConfigError, match=r"^rank of about 5000 digits is not possible: give 0 to 65535$"):
        bounds.RANK.check("rank", 10**5000)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("17", 17), ("", None), ("-1", None), ("1.5", None), ("\u00b2", None), ("9" * 5000, None)],
)
def test_counts_that_others_write_are_short_or_none(text: str, count: int | None) -> None:
    assert bounds.read_count(text) == count


def _check_words(line: str, name: str, limits: Bounds) -> None:
    assert name in line
    assert f"give {limits.describe()}" in line
    assert len(line) < 250
    assert line.rstrip("\n").isprintable()
