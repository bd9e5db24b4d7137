"""What a connection between two hosts says of clocks and of causes."""

from __future__ import annotations

import errno
import socket

import pytest

from undertow.errors import Refused
from undertow.tools.doctor.link_measurement import (
    ConnectResult,
    RoundTrip,
    classify,
    estimate_offset_s,
    explain_absence,
)


def test_the_fastest_round_trip_decides_about_the_offset() -> None:
    round_trips = [RoundTrip(10.0, 15.9, 1.0), RoundTrip(20.0, 25.0625, 0.125), RoundTrip(30.0, 35.1, 2.0)]
    assert estimate_offset_s(round_trips) == 5.0


@pytest.mark.parametrize(
    ("error", "reach"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), ConnectResult.REFUSED),
        (TimeoutError("timed out"), ConnectResult.SILENT),
        (TimeoutError(errno.ETIMEDOUT, ""), ConnectResult.SILENT),
        (OSError(errno.EHOSTUNREACH, ""), ConnectResult.NO_ROUTE),
        (OSError(errno.ENETUNREACH, ""), ConnectResult.NO_ROUTE),
        (PermissionError(errno.EACCES, ""), ConnectResult.FORBIDDEN),
        (socket.gaierror(socket.EAI_NONAME, ""), ConnectResult.UNKNOWN),
        (Refused("wrong token"), ConnectResult.STRANGER),
        (ConnectionResetError(errno.ECONNRESET, ""), ConnectResult.FAILED),
    ],
)
def test_an_error_says_why_a_connection_failed(error: Exception, reach: ConnectResult) -> None:
    assert classify(error) is reach


@pytest.mark.parametrize("reach", ConnectResult)
def test_every_kind_of_absence_has_an_explanation_and_advice(reach: ConnectResult) -> None:
    text, cure = explain_absence(reach, "b", 29500)
    assert text
    assert cure


def test_kinds_of_absence_are_distinguished() -> None:
    assert "nothing listens at port 29500" in explain_absence(ConnectResult.REFUSED, "b", 29500)[0]
    assert "a firewall drops packets" in explain_absence(ConnectResult.SILENT, "b", 29500)[0]
    assert "/etc/hosts" in explain_absence(ConnectResult.UNKNOWN, "b", 29500)[1]
