"""Quantities are parsed as people write them, and formatted in one way everywhere."""

from __future__ import annotations

import pytest

from undertow.bounds import GOAL, JITTER, STRAGGLE
from undertow.errors import ConfigError
from undertow.units import (
    format_bandwidth,
    format_byte_rate,
    format_bytes,
    format_change,
    format_clock,
    format_count,
    format_figure,
    format_ms,
    format_ms_figure,
    format_ns,
    format_percent,
    format_percent_figure,
    format_quantity,
    format_seconds,
    format_share,
    format_short,
    format_speed,
    parse_bandwidth,
    parse_bandwidths,
    parse_count,
    parse_numbers,
    parse_share,
    parse_time,
)


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
def test_bandwidths_as_people_write_them(text: str, rate: float) -> None:
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize(
    "text", ["", "fast", "gbit", "1 byte", "1gb", "1GB/s", "1GBps", "1gbit2", "1,5gbit", "nan", "inf", "0x1"]
)
def test_what_is_no_bandwidth_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a bandwidth: write it as 1gbit"):
        parse_bandwidth(text)


@pytest.mark.parametrize("text", ["0", "0gbit", "-1gbit", "1e400", "5bit", "2000gbit", "-0.0"])
def test_impossible_bandwidths_are_refused_with_an_example(text: str) -> None:
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
def test_bandwidths_in_words(rate: float, text: str) -> None:
    assert format_bandwidth(rate) == text


@pytest.mark.parametrize("rate", [1e9, 2.5e9, 4e8, 64e3])
def test_a_bandwidth_that_is_written_can_be_read(rate: float) -> None:
    assert parse_bandwidth(format_bandwidth(rate)) == rate


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


@pytest.mark.parametrize(("text", "share"), [("90%", 0.9), ("0.9", 0.9), (" 5 % ", 0.05), ("1", 1.0), (".5%", 0.005)])
def test_shares(text: str, share: float) -> None:
    assert parse_share(text, "--find-bandwidth", GOAL) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "much", "5%%", "5M", "5s%", "nan"])
def test_what_is_no_share_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_share(text, "--jitter", JITTER)
    assert str(refused.value) == f"--jitter {text!r} is not a share: write it as 90% or 0.9"


@pytest.mark.parametrize("text", ["100%", "-1%", "1e400"])
def test_impossible_shares_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"--jitter {text} is not possible: give 0 to 99%"):
        parse_share(text, "--jitter", JITTER)


def test_several_numbers() -> None:
    assert parse_numbers("1, 2.5,3", "--straggle", STRAGGLE) == (1.0, 2.5, 3.0)
    with pytest.raises(ConfigError, match="--straggle 0 is not possible"):
        parse_numbers("1,0", "--straggle", STRAGGLE)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0.00"), (9.994, "9.99"), (9.996, "10.0"), (99.94, "99.9"), (99.96, "100"), (12345.6, "12346")],
)
def test_figures_of_a_column_have_three_digits(value: float | None, text: str) -> None:
    assert format_figure(value) == text


def test_times_of_a_column_are_in_milliseconds() -> None:
    assert format_ms_figure(0.01234) == "12.3"


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0, 3, "0"),
        (2, 3, "2"),
        (9.996, 3, "10"),
        (99.96, 3, "100"),
        (1234.5, 3, "1234"),
        (9.96, 2, "10"),
        (99.6, 2, "100"),
    ],
)
def test_short_figures_end_without_zeros_and_exponents(value: float, digits: int, text: str) -> None:
    assert format_short(value, digits) == text


@pytest.mark.parametrize(
    ("time_s", "digits", "text"),
    [
        (0.0123456, 3, "12.3 ms"),
        (0.012, 3, "12 ms"),
        (0.000042, 3, "0.042 ms"),
        (4e-8, 3, "0 ms"),
        (1.5, 3, "1500 ms"),
        (12.345, 3, "12.3 s"),
        (0.000123, 2, "0.12 ms"),
        (0.0312, 2, "31 ms"),
        (12.345, 2, "12 s"),
    ],
)
def test_times_in_a_sentence(time_s: float, digits: int, text: str) -> None:
    assert format_ms(time_s, digits) == text


def test_times_of_a_trace_are_in_nanoseconds() -> None:
    assert format_ns(12_345_678) == "12.3 ms"


def test_seconds_are_formatted_in_their_most_natural_unit() -> None:
    shown = [format_seconds(seconds) for seconds in (0.0123, 5.67, 119, 150, 7199, 7300, 86400 * 3)]
    assert shown == ["0.0123 s", "5.67 s", "119 s", "2 min", "120 min", "2 h", "3 days"]


def test_a_clock() -> None:
    assert [format_clock(value) for value in (0, 63.9, 3723)] == ["0:00", "1:03", "1:02:03"]


def test_speeds() -> None:
    shown = [format_speed(value) for value in (0, 8.31, 52.6, 0.25, 0.05)]
    assert shown == ["0 steps/s", "8.3 steps/s", "53 steps/s", "0.25 steps/s", "20 s/step"]


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 5, "0 %"),
        (5, 0, "0 %"),
        (1, 1000, "under 1 %"),
        (5, 1000, "under 1 %"),
        (72, 100, "72 %"),
        (999, 1000, "over 99 %"),
        (5, 5, "100 %"),
        (6, 5, "120 %"),
    ],
)
def test_a_little_is_not_nothing_and_nearly_all_is_not_all(part: float, whole: float, text: str) -> None:
    assert format_share(part, whole) == text


def test_shares_to_the_nearest_percent() -> None:
    assert [format_percent(share) for share in (0.004, 0.094, 0.999)] == ["0 %", "9 %", "100 %"]
    assert format_percent(0.9876, 1) == "98.8 %"
    assert format_percent_figure(0.9876, 1) == "98.8"


def test_changes_have_a_sign_and_zero_has_a_plus() -> None:
    assert [format_change(share) for share in (0.071, -0.02, -0.0001, 0)] == ["+7.1 %", "-2.0 %", "+0.0 %", "+0.0 %"]
    assert format_change(-0.0123, 2) == "-1.23 %"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (1500, "1.5 kB"),
        (93.44e6, "93.4 MB"),
        (0.9996e9, "1 GB"),
        (2e12, "2000 GB"),
    ],
)
def test_sizes(size_bytes: float, text: str) -> None:
    assert format_bytes(size_bytes) == text


def test_rates_of_bytes_have_two_digits() -> None:
    shown = [format_byte_rate(value) for value in (0, 999, 1500, 93.4e6, 1.25e9)]
    assert shown == ["0 B/s", "999 B/s", "1.5 kB/s", "93 MB/s", "1.2 GB/s"]


def test_quantities_have_their_plural() -> None:
    assert [format_quantity(count, "core") for count in (0, 0.5, 1, 2)] == ["0 cores", "0.5 cores", "1 core", "2 cores"]
