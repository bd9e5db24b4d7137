"""Files that undertow writes, including in folders such as /tmp to which other users can write.

In: a path and the file's content.  Out: that file and no other: a symbolic link of another user is never followed.
Only the user of a job can read what it records.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PRIVATE = 0o600
SHARED = 0o666  # less what the user's umask takes away
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def create_private(path: Path) -> BinaryIO:
    """Open a new file that replaces any file of this name and that only this user can read.

    A link of this name is replaced, not followed.  Processes that have the old file open keep it.
    """
    draft = _name_draft(path)
    file = os.fdopen(os.open(draft, _NEW, PRIVATE), "wb")
    try:
        os.replace(draft, path)
    except BaseException:
        file.close()
        draft.unlink(missing_ok=True)
        raise
    return file


@contextlib.contextmanager
def replace_file(path: Path, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """Write a file that replaces any file of this name once it is complete."""
    draft = _name_draft(path)
    try:
        with os.fdopen(os.open(draft, _NEW, mode), "wb") as file:
            yield file
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write to a path that a user has chosen, like `write_file`, but never leave an incomplete file of this name."""
    if _find_link(path) is None and not _is_special(path):
        with replace_file(Path(path), SHARED) as file:
            file.write(data)
    else:
        write_file(path, data)


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write to a path that a user has chosen, which may be a pipe, a device or a link not made by another user."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    link = _find_link(path)
    if link is None:
        flags |= os.O_NOFOLLOW
    elif not _is_trusted(link, Path(path).parent):
        raise OSError(errno.ELOOP, "it is a symbolic link of another user, which is not followed", os.fspath(path))
    with os.fdopen(os.open(path, flags, SHARED), "wb") as file:
        file.write(data)


class UnnamedFile:
    """File in memory, which disappears when no process has it open any longer.

    Other processes of this user open it by `path`.  If the system has no such files, or does not let other processes
    open them, `fd` is None.
    """

    def __init__(self, label: str) -> None:
        self.fd: int | None = None
        self.path = ""
        with contextlib.suppress(AttributeError, OSError):
            self.fd = os.memfd_create(label)
            self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
            if not os.access(self.path, os.R_OK | os.W_OK):
                self.close()

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd, self.path = None, ""


def _name_draft(path: Path) -> Path:
    """Return a path in the same folder that other users and hosts cannot guess."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def _find_link(path: str | os.PathLike[str]) -> os.stat_result | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found if stat.S_ISLNK(found.st_mode) else None


def _is_special(path: str | os.PathLike[str]) -> bool:
    """Whether this is a pipe or a device."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _is_trusted(link: os.stat_result, folder: Path) -> bool:
    """Whether to follow a link, by the rule of the kernel's fs.protected_symlinks.

    In folders such as /tmp, where all users can create files but not replace those of others, only links of this user
    and of the folder's owner are followed.
    """
    found = folder.stat()
    is_shared = bool(found.st_mode & stat.S_ISVTX and found.st_mode & stat.S_IWOTH)
    return not is_shared or link.st_uid in (os.geteuid(), found.st_uid)
