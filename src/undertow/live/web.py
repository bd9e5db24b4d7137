"""The live view over HTTP: a page, its events, the figures as JSON and for Prometheus; on loopback only.

In: pictures of the job, one after the other.  Out: answers to GET and HEAD.
A name that a stranger's site may have pointed at this host is refused: its scripts shall not read a job's output.
Connections, viewers and the size of a request are limited: those who look on must not take the launcher's memory.
"""

from __future__ import annotations

import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO

import msgspec

from undertow.errors import ConfigError
from undertow.live.board import Picture
from undertow.live.metrics import CONTENT_TYPE, write_metrics
from undertow.live.page import read_page
from undertow.wire.strangers import find_surplus

ADDRESS = "127.0.0.1"
KEEP_ALIVE_S = 5.0
# How long browsers may take for the last picture.
FAREWELL_S = 1.0
POLL_S = 0.1
MOST_VIEWERS = 64  # who follow the events; as many may be answered at once, and as many may be about to ask
REQUEST_S = 10.0  # a browser that neither asks nor reads
MOST_REQUEST_BYTES = 16 << 10
_OWN_NAMES = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Gallery:
    """The newest picture, for the threads that serve it."""

    def __init__(self, picture: Picture) -> None:
        self._changed = threading.Condition()
        self._picture = picture
        self._number = 0
        self._viewers = 0
        self._is_over = False

    def hang(self, picture: Picture, *, is_last: bool = False) -> None:
        with self._changed:
            self._picture, self._is_over = picture, is_last
            self._number += 1
            self._changed.notify_all()

    def newest(self) -> Picture:
        return self._picture

    def wait_for_viewers(self, timeout_s: float) -> None:
        """Until all have seen the last one."""
        with self._changed:
            self._changed.wait_for(lambda: not self._viewers, timeout_s)

    def watch(self) -> Iterator[Picture | None]:
        """Every new picture, the one that is there first; None if there was none for a while."""
        with self._viewing():
            seen = -1
            while True:
                with self._changed:
                    self._changed.wait_for(lambda seen=seen: self._number != seen, KEEP_ALIVE_S)  # type: ignore[misc]
                    is_new, seen = self._number != seen, self._number
                    picture, is_over = self._picture, self._is_over
                yield picture if is_new else None
                if is_over:
                    return

    @contextmanager
    def _viewing(self) -> Iterator[None]:
        with self._changed:
            self._viewers += 1
        try:
            yield
        finally:
            with self._changed:
                self._viewers -= 1
                self._changed.notify_all()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * MOST_VIEWERS  # else the kernel lets those who come together wait for seconds

    def __init__(self, port: int, gallery: Gallery) -> None:
        self.gallery = gallery
        self.viewers = threading.Semaphore(MOST_VIEWERS)
        self.answers = threading.Semaphore(MOST_VIEWERS)
        self._asking: dict[socket.socket, float] = {}  # since when; oldest first
        self._lock = threading.Lock()
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as error:
            raise ConfigError(f"--live-port: {ADDRESS}:{port}: {error.strerror}; 0 takes any free port") from None
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_S,), name="undertow-web", daemon=True)

    def server_bind(self) -> None:
        # Not that of HTTPServer, which asks the name service who we are, and may wait for it.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = find_surplus(self._asking, MOST_VIEWERS)
            if oldest is not None:
                self._end(oldest)
            self._asking[request] = time.monotonic()
        super().process_request(request, client_address)

    def has_asked(self, request: Any) -> None:
        """This connection has sent its request."""
        with self._lock:
            self._asking.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        self.has_asked(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that send their request too slowly; called every `POLL_S`."""
        with self._lock:
            late_s = time.monotonic() - REQUEST_S
            for request in [each for each, since_s in self._asking.items() if since_s < late_s]:
                self._end(request)

    def _end(self, request: socket.socket) -> None:
        del self._asking[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and closes it

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a browser that went away; nobody wants to read of it in the job's output


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = REQUEST_S
    server_version, sys_version = "undertow", ""

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Limited(self.rfile, MOST_REQUEST_BYTES)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except LineTooLong:  # http.server catches it among the headers, but not in the first line
            self.requestline, self.request_version, self.command = "", "HTTP/1.1", "GET"
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            self.close_connection = True

    def parse_request(self) -> bool:
        is_parsed = super().parse_request()
        self.server.has_asked(self.connection)
        return is_parsed

    def do_GET(self) -> None:  # http.server's name
        answer = _ANSWERS.get(self.path.partition("?")[0])
        if not _OWN_NAMES.fullmatch(self.headers.get("Host", "")):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, f"this is http://{ADDRESS}, and no other name of it")
        elif answer is None:
            self.send_error(HTTPStatus.NOT_FOUND, "there are /, /events, /state.json and /metrics")
        else:
            self._answer(answer)

    def _answer(self, answer: Callable[[Handler], None]) -> None:
        places = self.server.viewers if answer is Handler.stream else self.server.answers
        if not places.acquire(blocking=False):
            words = f"{MOST_VIEWERS} viewers are connected, and there is no room for more: close one of them"
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, words)
            return
        try:
            answer(self)
        finally:
            places.release()

    do_HEAD = do_GET  # noqa: N815

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        words = message or HTTPStatus(code).phrase
        self.reply(f"{words}\n".encode(), "text/plain; charset=utf-8", status=code)

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
            for picture in self.server.gallery.watch():
                body = b": still here" if picture is None else b"data: " + msgspec.json.encode(picture)
                self.wfile.write(body + b"\n\n")

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Limited:
    """The request of one connection, up to a number of bytes."""

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


def _show_state(handler: Handler) -> None:
    handler.reply(msgspec.json.encode(handler.server.gallery.newest()), "application/json")


def _show_metrics(handler: Handler) -> None:
    handler.reply(write_metrics(handler.server.gallery.newest()).encode(), CONTENT_TYPE)


_ANSWERS: dict[str, Callable[[Handler], None]] = {
    "/": _show_page,
    "/events": Handler.stream,
    "/state.json": _show_state,
    "/metrics": _show_metrics,
}
