"""Serves the live view over HTTP, on loopback only: a page, its events, the figures as JSON and for Prometheus.

In: snapshots of the job; HTML, style and script of the page, from the files beside this one.  Out: responses to GET and
HEAD.
The page loads nothing from elsewhere, and its policy lets a browser run no other script.
A request under another host name is refused: a foreign web site may have pointed that name at this host, and its
scripts must not read a job's output.  Connections, viewers and the size of a request are limited, to protect the
launcher's memory.
"""

from __future__ import annotations

import functools
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from undertow.engine.wire.strangers import find_surplus
from undertow.errors import ConfigError
from undertow.observe.live.job_state import JobSnapshot
from undertow.observe.live.metrics import CONTENT_TYPE, write_metrics
from undertow.observe.report.document import STYLE, hash_source, make_document

ADDRESS = "127.0.0.1"
# Browsers may take this long to fetch the last snapshot.
LAST_SNAPSHOT_S = 1.0
POLL_S = 0.1
# Limit of viewers that follow the events, of other responses at once, and of connections without a request yet.
MOST_VIEWERS = 64
REQUEST_S = 10.0  # then a browser that neither sends nor reads is disconnected
MOST_REQUEST_BYTES = 16 << 10
_OWN_NAMES = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
KEEP_ALIVE_S = 5.0


class WebDisplay(ThreadingHTTPServer):
    """A display in browsers: an HTTP server on loopback with limits on viewers and connections."""

    every_s = 1.0
    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * MOST_VIEWERS  # otherwise simultaneous connections may wait for seconds in the kernel

    def __init__(self, port: int, snapshot: JobSnapshot) -> None:
        self.latest = LatestSnapshot(snapshot)
        self.viewers = threading.Semaphore(MOST_VIEWERS)
        self.responses = threading.Semaphore(MOST_VIEWERS)
        self._silent: dict[socket.socket, float] = {}  # connections without a request, and since when; oldest first
        self._lock = threading.Lock()
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as error:
            raise ConfigError(f"--live-port: {ADDRESS}:{port}: {error.strerror} (port 0 takes any free one)") from None
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_S,), name="undertow-web", daemon=True)

    def server_bind(self) -> None:
        # HTTPServer's own method resolves the name of this host, which may take long.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def start(self) -> None:
        self._thread.start()

    def show(self, snapshot: JobSnapshot) -> None:
        self.latest.set(snapshot)

    def finish(self, snapshot: JobSnapshot) -> None:
        self.latest.set(snapshot, is_last=True)
        self.latest.wait_for_viewers(LAST_SNAPSHOT_S)

    def is_stuck(self) -> bool:
        return False  # each browser has its own thread

    def release(self) -> None:
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = find_surplus(self._silent, MOST_VIEWERS)
            if oldest is not None:
                self._disconnect(oldest)
            self._silent[request] = time.monotonic()
        super().process_request(request, client_address)

    def on_request(self, request: Any) -> None:
        """Record that this connection has sent its request, or was closed."""
        with self._lock:
            self._silent.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        self.on_request(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that send their request too slowly; called every `POLL_S`."""
        with self._lock:
            late_s = time.monotonic() - REQUEST_S
            for request in [each for each, since_s in self._silent.items() if since_s < late_s]:
                self._disconnect(request)

    def _disconnect(self, request: socket.socket) -> None:
        del self._silent[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)  # wakes up its thread, which closes it

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a browser that disconnected is not worth a line in the job's output


class Handler(BaseHTTPRequestHandler):
    """Handler of the requests of one connection."""

    server: WebDisplay
    timeout = REQUEST_S
    server_version, sys_version = "undertow", ""

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Limited(self.rfile, MOST_REQUEST_BYTES)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except LineTooLong:  # http.server catches this error in the headers, but not in the first line
            self.requestline, self.request_version, self.command = "", "HTTP/1.1", "GET"
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            self.close_connection = True

    def parse_request(self) -> bool:
        is_parsed = super().parse_request()
        self.server.on_request(self.connection)
        return is_parsed

    def do_GET(self) -> None:  # http.server's name
        respond = _RESPONSES.get(self.path.partition("?")[0])
        if not _OWN_NAMES.fullmatch(self.headers.get("Host", "")):
            self.send_error(
                HTTPStatus.MISDIRECTED_REQUEST, f"this page is served at http://{ADDRESS} only: use that address"
            )
        elif respond is None:
            self.send_error(HTTPStatus.NOT_FOUND, "no such page: there are /, /events, /state.json and /metrics")
        else:
            self._respond(respond)

    def _respond(self, respond: Callable[[Handler], None]) -> None:
        slots = self.server.viewers if respond is Handler.stream else self.server.responses
        if not slots.acquire(blocking=False):
            message = f"{MOST_VIEWERS} viewers are connected, which is the limit: close one of them"
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, message)
            return
        try:
            respond(self)
        finally:
            slots.release()

    do_HEAD = do_GET  # noqa: N815

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        text = message or HTTPStatus(code).phrase
        self.reply(f"{text}\n".encode(), "text/plain; charset=utf-8", status=code)

    def reply(self, body: bytes, kind: str, *, status: int = 200, more: Mapping[str, str] | None = None) -> None:
        self._begin(status, {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def stream(self) -> None:
        self._begin(200, {"Content-Type": "text/event-stream; charset=utf-8"})
        if self.command == "HEAD":
            return
        with suppress(OSError):
            self.wfile.write(b"retry: 1000\n\n")
            for snapshot in self.server.latest.follow():
                body = b": still here" if snapshot is None else b"data: " + msgspec.json.encode(snapshot)
                self.wfile.write(body + b"\n\n")

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Limited:
    """A file with the request of one connection, of limited length."""

    def __init__(self, file: BinaryIO, most_bytes: int) -> None:
        self._file = file
        self._left_bytes = most_bytes

    def readline(self, size: int = -1) -> bytes:
        most_bytes = self._left_bytes + 1
        line = self._file.readline(most_bytes if size < 0 else min(size, most_bytes))
        self._left_bytes -= len(line)
        if self._left_bytes < 0:
            raise LineTooLong("request")
        return line

    def close(self) -> None:
        self._file.close()


def _show_page(handler: Handler) -> None:
    page = read_page()
    handler.reply(page.html, "text/html; charset=utf-8", more={"Content-Security-Policy": page.policy})


_RESPONSES: dict[str, Callable[[Handler], None]] = {
    "/": _show_page,
    "/events": Handler.stream,
    "/state.json": lambda handler: handler.reply(msgspec.json.encode(handler.server.latest.get()), "application/json"),
    "/metrics": lambda handler: handler.reply(write_metrics(handler.server.latest.get()).encode(), CONTENT_TYPE),
}


class LivePage(NamedTuple):
    """A document with its Content-Security-Policy."""

    html: bytes
    policy: str


@functools.cache
def read_page() -> LivePage:
    style, script = _read("live_page.css"), _read("live_page.js")
    body = f"{_read('live_page.html')}<script>{script}</script>"
    html = make_document("undertow", body, style=style, head='<link rel="icon" href="data:,">\n')
    policy = {
        "default-src": "'none'",
        "script-src": hash_source(script),
        "style-src": hash_source(STYLE + style),
        "connect-src": "'self'",
        "img-src": "data:",  # the empty icon
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return LivePage(html.encode(), "; ".join(f"{name} {value}" for name, value in policy.items()))


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


class LatestSnapshot:
    """The newest snapshot of a job, for the threads that serve it."""

    def __init__(self, snapshot: JobSnapshot) -> None:
        self._changed = threading.Condition()
        self._snapshot = snapshot
        self._number = 0
        self._viewers = 0
        self._is_over = False

    def set(self, snapshot: JobSnapshot, *, is_last: bool = False) -> None:
        with self._changed:
            self._snapshot, self._is_over = snapshot, is_last
            self._number += 1
            self._changed.notify_all()

    def get(self) -> JobSnapshot:
        return self._snapshot

    def wait_for_viewers(self, timeout_s: float) -> None:
        """Wait until all viewers have the last snapshot, or until the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: not self._viewers, timeout_s)

    def follow(self) -> Iterator[JobSnapshot | None]:
        """Yield the current snapshot and every new one, and None after each `KEEP_ALIVE_S` without a new one."""
        with self._changed:
            self._viewers += 1
        try:
            seen = -1
            while True:
                with self._changed:
                    self._changed.wait_for(lambda seen=seen: self._number != seen, KEEP_ALIVE_S)  # type: ignore[misc]
                    is_new, seen = self._number != seen, self._number
                    snapshot, is_over = self._snapshot, self._is_over
                yield snapshot if is_new else None
                if is_over:
                    return
        finally:
            with self._changed:
                self._viewers -= 1
                self._changed.notify_all()
