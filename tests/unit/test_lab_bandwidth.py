"""Bandwidths are read as people write them."""

from __future__ import annotations

import pytest

from undertow.errors import ConfigError
from undertow.lab.bandwidth import format_bandwidth, parse_bandwidth, parse_bandwidths


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1gbit", 1e9),
        ("1 Gbit/s", 1e9),
        ("2.5GBIT", 2.5e9),
        ("400mbit", 4e8),
        ("400 Mbps", 4e8),
        ("400mbitps", 4e8),
        ("64kbit", 64e3),
        ("5000bit", 5e3),
        ("9600bps", 9600),
        (".5gbit", 5e8),
        ("1e3mbit", 1e9),
        ("10", 1e10),
        (" 0.1 ", 1e8),
    ],
)
def test_what_people_write(text: str, rate: float) -> None:
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize(
    "text", ["", "fast", "gbit", "1 byte", "1gb", "1GB/s", "1GBps", "1gbit2", "1,5gbit", "nan", "inf", "0x1"]
)
def test_nonsense_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a bandwidth: write it as 1gbit"):
        parse_bandwidth(text)


@pytest.mark.parametrize("text", ["0", "0gbit", "-1gbit", "1e400", "5bit", "2000gbit", "-0.0"])
def test_impossible_ones_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not possible: give .* such as 1gbit"):
        parse_bandwidth(text)


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("1,2,4,5,10gbit", (1e9, 2e9, 4e9, 5e9, 1e10)),
        ("100mbit, 1 gbit", (1e8, 1e9)),
        ("100, 200 Mbit/s", (1e8, 2e8)),
        ("1,2.5", (1e9, 2.5e9)),
        ("1gbit", (1e9,)),
    ],
)
def test_the_last_unit_counts_for_all_that_have_none(text: str, rates: tuple[float, ...]) -> None:
    assert parse_bandwidths(text) == rates


@pytest.mark.parametrize("text", ["", "1,,2gbit", "1gbit,", ",", "1,fast"])
def test_a_list_with_a_gap_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_bandwidths(text)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (1e9, "1 Gbit/s"),
        (2.5e9, "2.5 Gbit/s"),
        (1e10, "10 Gbit/s"),
        (4e8, "400 Mbit/s"),
        (0.99999e9, "1 Gbit/s"),
        (2.912345e9, "2.91 Gbit/s"),
        (64e3, "64 kbit/s"),
        (500, "500 bit/s"),
        (1.5e12, "1500 Gbit/s"),
        (0, "0 bit/s"),
    ],
)
def test_back_in_words(rate: float, text: str) -> None:
    assert format_bandwidth(rate) == text


@pytest.mark.parametrize("rate", [1e9, 2.5e9, 4e8, 64e3])
def test_what_is_written_can_be_read(rate: float) -> None:
    assert parse_bandwidth(format_bandwidth(rate)) == rate
