"""Looking up hosts: every invalid name raises an error of the network."""

from __future__ import annotations

import socket

import pytest

from undertow.engine.wire.listeners import open_listener
from undertow.engine.wire.routes import look_up, route_to
from undertow.errors import ConfigError

IMPOSSIBLE = ["10.0..1", "a" * 64, "\udcff", "a\0b"]


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_host_can_be_called_is_not_known(name: str) -> None:
    with pytest.raises(socket.gaierror) as caught:
        look_up(name)
    assert caught.value.strerror


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_route_to_no_host_is_refused_in_words(name: str) -> None:
    with pytest.raises(ConfigError, match="is not known here"):
        route_to(name)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_nothing_listens_on_what_no_host_can_be_called(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        open_listener(name, 0)


def test_an_address_is_found() -> None:
    assert look_up("127.0.0.1", 80)[0][4] == ("127.0.0.1", 80)
