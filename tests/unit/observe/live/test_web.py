"""The web view: its responses, whom it serves, and that it ends only when the last snapshot was fetched."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.live_samples import make_job_state, make_snapshot
from undertow.errors import ConfigError
from undertow.observe.live.web import MOST_REQUEST_BYTES, MOST_VIEWERS, WebDisplay

HANG_S = 30.0


@pytest.fixture
def web() -> Iterator[WebDisplay]:
    web = WebDisplay(0, make_snapshot(2))
    web.start()
    yield web
    web.release()


def ask(web: WebDisplay, path: str, *, method: str = "GET", host: str | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", web.server_port, timeout=HANG_S)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host if host is not None else f"127.0.0.1:{web.server_port}")
    connection.endheaders()
    return connection.getresponse()


def test_the_page_loads_nothing_from_elsewhere_and_runs_only_itself(web: WebDisplay) -> None:
    answer = ask(web, "/")
    page = answer.read().decode()
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert not re.search(r"(src|href)=[\"']?(https?:|//)", page)
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", ["/", "/state.json", "/metrics", "/nowhere"])
def test_every_response_has_the_security_headers(web: WebDisplay, path: str) -> None:
    headers = ask(web, path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers


def test_the_state_is_the_whole_snapshot(web: WebDisplay) -> None:
    state = json.load(ask(web, "/state.json"))
    assert (state["script"], state["steps"], len(state["rows"])) == ("train.py", 1240, 2)
    assert state["rows"][1]["pulse"]["layer"] == "fc6"


def test_metrics_have_prometheus_content_type(web: WebDisplay) -> None:
    answer = ask(web, "/metrics?from=somewhere")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b'undertow_steps_total{rank="0",host="node0"} 1240' in answer.read()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:9", "[::1]:8000"])
def test_a_tunnel_may_have_another_port(web: WebDisplay, host: str) -> None:
    assert ask(web, "/state.json", host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "0.0.0.0"])
def test_a_foreign_host_name_is_refused(web: WebDisplay, host: str) -> None:
    answer = ask(web, "/state.json", host=host)
    assert answer.status == 421
    assert b"train.py" not in answer.read()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(web: WebDisplay, method: str) -> None:
    assert ask(web, "/state.json", method=method).status == 501


@pytest.mark.parametrize("path", ["/", "/events", "/metrics"])
def test_head_is_without_a_body(web: WebDisplay, path: str) -> None:
    with socket.create_connection(("127.0.0.1", web.server_port), timeout=HANG_S) as connection:
        connection.sendall(f"HEAD {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n")


def test_other_paths_are_not_found(web: WebDisplay) -> None:
    assert ask(web, "/../../etc/passwd").status == 404


def read_event(answer: http.client.HTTPResponse) -> dict[str, object]:
    while not (line := answer.readline()).startswith(b"data: "):
        assert line, "the stream has ended"
    event: dict[str, object] = json.loads(line[6:])
    return event


def test_events_send_every_snapshot_and_end_with_the_last(web: WebDisplay) -> None:
    answer = ask(web, "/events")
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert read_event(answer)["steps"] == 1240
    web.show(make_snapshot(2, steps=1250))
    assert read_event(answer)["steps"] == 1250
    job = make_job_state(2)
    job.end_job("done")
    ending = threading.Thread(target=web.finish, args=(job.take_snapshot(200.0),))
    ending.start()
    assert read_event(answer)["verdict"] == "done"
    assert answer.read() == b"\n"
    ending.join(HANG_S)
    assert not ending.is_alive()


def send(web: WebDisplay, text: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", web.server_port), timeout=HANG_S)
    connection.sendall(text.encode())
    return connection


def test_viewers_beyond_the_limit_are_refused_and_other_requests_served(web: WebDisplay) -> None:
    viewers = [ask(web, "/events") for _ in range(MOST_VIEWERS)]
    refused = ask(web, "/events")
    assert refused.status == 503
    assert refused.read() == b"64 viewers are connected, which is the limit: close one of them\n"
    assert [ask(web, path).status for path in ("/", "/state.json", "/metrics")] == [200, 200, 200]
    assert read_event(viewers[-1])["steps"] == 1240
    web.finish(make_snapshot(2))
    for viewer in viewers:
        viewer.read()
    assert ask(web, "/events").status == 200


def test_connections_without_a_request_make_room_for_new_ones(web: WebDisplay) -> None:
    idle = [send(web, "GET /state") for _ in range(2 * MOST_VIEWERS)]
    assert ask(web, "/state.json").status == 200
    assert idle[0].recv(1) == b""
    for connection in idle:
        connection.close()


def test_a_request_that_takes_too_long_is_ended(web: WebDisplay, monkeypatch: pytest.MonkeyPatch) -> None:
    with send(web, "GET /state") as slow:
        monkeypatch.setattr("undertow.observe.live.web.REQUEST_S", -1.0)
        assert slow.recv(1) == b""


@pytest.mark.parametrize(
    ("head", "code"),
    [
        ("GET /" + "x" * 16380, b"414"),  # all of it is read: what is left unread may cut off the answer
        ("GET /" + "x" * 30000, b"414"),
        ("GET / HTTP/1.0\r\n" + ("Cookie: " + "x" * 1000 + "\r\n") * 20 + "\r\n", b"431"),
    ],
)
def test_a_request_that_is_too_long_is_not_read(web: WebDisplay, head: str, code: bytes) -> None:
    with send(web, head) as connection, suppress(ConnectionResetError):
        answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.0 " + code) or (answer == b"" and len(head) > MOST_REQUEST_BYTES + 1)
    assert ask(web, "/state.json").status == 200


def test_it_listens_on_loopback_only(web: WebDisplay) -> None:
    assert web.server_address == ("127.0.0.1", web.server_port)


def test_a_port_in_use_is_a_usage_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--live-port: 127.0.0.1:{port}: Address already in use"):
            WebDisplay(port, make_snapshot(1))
