"""Where pulses arrive: a datagram socket of the launcher, in a folder that nobody else can look into.

In: datagrams of this user's processes.  Out: pulses, handed to whoever asked for them; what is none is dropped.
A path, not an abstract name: those are open to every user of the host, and emulated hosts do not share them.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from undertow.errors import Garbled
from undertow.live.pulse import Pulse, decode

LONGEST_DATAGRAM = 1 << 16


class Mailbox:
    """`path` is where to send to, from `start` on until `close`.  Until then there is no `folder`."""

    def __init__(self, hear: Callable[[Pulse], None]) -> None:
        self._hear = hear
        # In /tmp whatever TMPDIR says: the kernel takes no more than 107 bytes for a socket's path.
        self.folder = Path("/tmp") / f"undertow-live-{secrets.token_hex(8)}"
        self.path = self.folder / "pulses"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._thread = threading.Thread(target=self._run, name="undertow-mailbox", daemon=True)

    def open(self) -> None:
        """Make the folder, in which pulses wait from now on."""
        self.folder.mkdir(mode=0o700)  # fails if it is there: then it would be another user's
        self._socket.bind(str(self.path))

    def start(self) -> None:
        self.open()
        self._thread.start()

    def close(self) -> None:
        """What has come is handed over first.  A second call does nothing."""
        if self._thread.is_alive():
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as waker:
                waker.sendto(b"", str(self.path))
            self._thread.join()
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self) -> None:
        while data := self._socket.recv(LONGEST_DATAGRAM):
            try:
                pulse = decode(data)
            except Garbled:
                continue
            self._hear(pulse)
