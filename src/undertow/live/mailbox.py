"""Where pulses arrive: a datagram socket of the launcher, in a folder that nobody else can look into.

In: datagrams of this user's processes.  Out: pulses, handed to whoever asked for them; what is none is dropped.
A path, not an abstract name: those are open to every user of the host, and emulated hosts do not share them.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from undertow.errors import Garbled
from undertow.live.pulse import Pulse, decode

LONGEST_DATAGRAM = 1 << 16


class Mailbox:
    """`path` is where to send to, from now on until `close`."""

    def __init__(self, hear: Callable[[Pulse], None]) -> None:
        self._hear = hear
        # In /tmp whatever TMPDIR says: the kernel takes no more than 107 bytes for a socket's path.
        self._folder = Path(tempfile.mkdtemp(prefix="undertow-live-", dir="/tmp"))
        self.path = self._folder / "pulses"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._thread = threading.Thread(target=self._run, name="undertow-mailbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What has come is handed over first.  A second call does nothing."""
        if self._thread.is_alive():
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as waker:
                waker.sendto(b"", str(self.path))
            self._thread.join()
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        while data := self._socket.recv(LONGEST_DATAGRAM):
            try:
                pulse = decode(data)
            except Garbled:
                continue
            self._hear(pulse)
