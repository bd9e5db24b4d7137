"""Counts and times are read as people write them."""

from __future__ import annotations

import pytest

from undertow.cli.quantities import format_count, parse_count, parse_time
from undertow.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "count"),
    [("61.5M", 61.5e6), ("143e6", 143e6), ("1.2B", 1.2e9), ("1.2G", 1.2e9), (" 7 k ", 7e3), ("5", 5), (".5m", 5e5)],
)
def test_counts(text: str, count: float) -> None:
    assert parse_count(text, "--params") == count


@pytest.mark.parametrize(
    ("text", "time_s"), [("0.25s", 0.25), ("250ms", 0.25), ("250 MS", 0.25), ("80us", 8e-5), ("80 µs", 8e-5), ("2", 2)]
)
def test_times(text: str, time_s: float) -> None:
    assert parse_time(text, "--iteration") == pytest.approx(time_s)


@pytest.mark.parametrize("text", ["", "M", "many", "61.5X", "1,5M", "1M2", "1e6e6", "nan", "inf", "0x10", "1_000"])
def test_what_is_no_count_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--params .* is not a number: write it as 61.5M"):
        parse_count(text, "--params")


@pytest.mark.parametrize("text", ["", "soon", "0.25h", "0.25 sec", "s", "1s2", "nan"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--iteration .* is not a time: write it as 0.25s"):
        parse_time(text, "--iteration")


@pytest.mark.parametrize("text", ["0", "-1M", "0.5", "1e400", "1e16"])
def test_impossible_counts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not possible: give .* such as 61.5M"):
        parse_count(text, "--params")


@pytest.mark.parametrize("text", ["0", "0s", "-250ms", "1e400", "1e9s", "0.1us"])
def test_impossible_times_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not possible: give .* such as 0.25s"):
        parse_time(text, "--iteration")


@pytest.mark.parametrize(
    ("count", "text"),
    [(12, "12"), (1500, "1.5 k"), (61.5e6, "61.5 M"), (78.125e6, "78.125 M"), (1250e6, "1250 M"), (1.2e10, "12 B")],
)
def test_counts_in_words(count: float, text: str) -> None:
    assert format_count(count) == text
