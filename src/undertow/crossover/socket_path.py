"""Path of the socket of this host's and user's arbiter, and who is at its other end.

In: a path that the user has chosen, or nothing.  Out: the socket's path, in a folder that no other user can look into.
Not in the folder of the login session, nor in TMPDIR: what a scheduler, a cron job and a terminal start must find the
same socket.
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
    """Return the socket's path: the chosen one, or the usual one."""
    path = Path(chosen) if chosen else Path("/tmp") / f"undertow-{os.getuid()}" / "share.sock"
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(f"{path} is too long for a socket: choose one of at most {LONGEST_PATH} bytes")
    return path


def prepare_folder(path: Path) -> None:
    """Make the socket's folder; refuse one that another user could change."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        pass  # it is no folder: refused below
    except OSError as error:
        raise ConfigError(
            f"{path.parent} cannot be made ({error.strerror}): choose another path for the arbiter's socket with "
            "UNDERTOW_SHARE_SOCKET"
        ) from None
    check_folder(path)


def check_folder(path: Path) -> None:
    """Raise `ConfigError` if another user may have put the socket there."""
    found = path.parent.lstat()
    is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or is_open:
        raise ConfigError(
            f"{path.parent} is not a folder of this user alone, so it is not used: remove it, or choose another path "
            "for the arbiter's socket with UNDERTOW_SHARE_SOCKET"
        )


def find_peer(connection: socket.socket) -> SocketPeer | None:
    """Return the process at the other end, even if it never answers; None where the kernel does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, user, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return SocketPeer(pid, user)
