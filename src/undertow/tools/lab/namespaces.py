"""Linux namespaces: the few system calls that Python 3.11 does not offer.

In: flags, open namespace files.  Out: nothing, or an `OSError` with the kernel's reason.
A namespace exists as long as a process or an open file holds it.  None is given a name here,
so the kernel removes each with its last holder.  Every function affects the calling thread
only, except `unshare(NEWPID)`, which affects its future children.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEWNS = 0x00020000  # mounts
NEWUTS = 0x04000000  # host name
NEWPID = 0x20000000  # process ids, of future children
NEWNET = 0x40000000  # interfaces, addresses, ports

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1


def unshare(flags: int) -> None:
    """Move the calling thread into new namespaces of these kinds."""
    _check(_libc().unshare(flags))


def set_namespace(fd: int, kind: int = 0) -> None:
    """Move the calling thread into the namespace behind an open file; 0 accepts any kind."""
    _check(_libc().setns(fd, kind))


def open_namespace(name: str) -> int:
    """Open a namespace of the calling thread as a file: "net", "uts" or "pid_for_children"."""
    return os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY)


@contextmanager
def restored_namespaces(*names: str) -> Iterator[None]:
    """Move the calling thread back to its namespaces at the end of the block."""
    fds: list[int] = []
    try:
        for name in names:
            fds.append(open_namespace(name))
        try:
            yield
        finally:
            for fd in fds:
                set_namespace(fd)
    finally:
        for fd in fds:
            os.close(fd)


def mount_own_proc() -> None:
    """Mount a /proc that shows this process namespace, for this mount namespace only."""
    _mount(b"none", b"/", None, MS_REC | MS_PRIVATE)
    _mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


@contextmanager
def replaced_file(path: Path, text: str) -> Iterator[None]:
    """Replace the file's text inside the block, for this mount namespace only."""
    # The text is in a tmpfs that covers /tmp for a moment and is then detached: it exists only as
    # long as its one file is in use, so nothing can be left behind.
    _mount(b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    try:
        file = Path("/tmp", path.name)
        file.write_text(text)
        file.chmod(0o644)
        _mount(bytes(file), bytes(path), None, MS_BIND)
    finally:
        _unmount("/tmp")
    try:
        yield
    finally:
        _unmount(str(path))


def die_with_parent(signum: int) -> None:
    """Have the kernel send us this signal when our parent ends."""
    _check(_libc().prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0))


def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int) -> None:
    _check(_libc().mount(source, target, kind, ctypes.c_ulong(flags), None))


def _unmount(target: str) -> None:
    _check(_libc().umount2(target.encode(), MNT_DETACH))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
