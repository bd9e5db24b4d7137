"""Path of the socket of this user's arbiter on this host, and the process at its other end.

In: a path chosen by the user, or none.  Out: the socket's path, in a folder that is closed to other users.
It is neither in the folder of the login session nor in TMPDIR: processes started by a scheduler, by cron and from a
terminal must find the same socket.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path
from typing import NamedTuple

from undertow.errors import ConfigError

LONGEST_PATH = 100  # the kernel takes 107 bytes
CREDENTIALS = struct.Struct("3i")


class SocketPeer(NamedTuple):
    """Process at the other end of a Unix socket."""

    pid: int
    user: int


def find_socket(chosen: str = "") -> Path:
    """Return the socket's path: the chosen one, or the default."""
    path = Path(chosen) if chosen else Path("/tmp") / f"undertow-{os.getuid()}" / "share.sock"
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(f"{path} is too long for a socket: choose one of at most {LONGEST_PATH} bytes")
    return path


def prepare_folder(path: Path) -> None:
    """Create the socket's folder; refuse one that another user could change."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        pass  # not a folder: refused below
    except OSError as error:
        raise ConfigError(
            f"{path.parent} cannot be created ({error.strerror}): choose another path for the arbiter's socket with "
            "UNDERTOW_SHARE_SOCKET"
        ) from None
    check_folder(path)


def check_folder(path: Path) -> None:
    """Raise `ConfigError` if another user could have put the socket there."""
    found = path.parent.lstat()
    is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or is_open:
        raise ConfigError(
            f"{path.parent} is not used because it is not a folder of this user alone: remove it, or choose another "
            "path for the arbiter's socket with UNDERTOW_SHARE_SOCKET"
        )


def find_peer(connection: socket.socket) -> SocketPeer | None:
    """Return the process at the other end, even if it never answers; None if the kernel does not report it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, user, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return SocketPeer(pid, user)
