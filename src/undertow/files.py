"""Files that undertow writes, also in folders that other users can write to, such as /tmp.

In: a path and what belongs there.  Out: that file, and no other: a symbolic link that another user has put there is
never followed.  What a job records is readable by its own user only.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PRIVATE = 0o600
SHARED = 0o666  # less what the user's umask takes away
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def create_private(path: Path) -> BinaryIO:
    """Open a new file in place of whatever has this name, readable by this user only.

    A link of this name is replaced, not followed; a file that others have open stays theirs.
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


@contextmanager
def replace_file(path: Path, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """Write a file in place of whatever has this name: whole, or not at all."""
    draft = _name_draft(path)
    try:
        with os.fdopen(os.open(draft, _NEW, mode), "wb") as file:
            yield file
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write where a user has said, as `write_file` does, but a file that is cut off never has this name."""
    if _find_link(path) is None and not _is_special(path):
        with replace_file(Path(path), SHARED) as file:
            file.write(data)
    else:
        write_file(path, data)


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write where a user has said: also to a pipe or device, and through a link that is not another user's."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    link = _find_link(path)
    if link is None:
        flags |= os.O_NOFOLLOW
    elif not _is_trusted(link, Path(path).parent):
        raise OSError(errno.ELOOP, "it is a symbolic link of another user, which is not followed", os.fspath(path))
    with os.fdopen(os.open(path, flags, SHARED), "wb") as file:
        file.write(data)


def _name_draft(path: Path) -> Path:
    """A name beside it that cannot be guessed; hosts may share the folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def _find_link(path: str | os.PathLike[str]) -> os.stat_result | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found if stat.S_ISLNK(found.st_mode) else None


def _is_special(path: str | os.PathLike[str]) -> bool:
    """Whether it is there and no file: what is written there goes elsewhere."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _is_trusted(link: os.stat_result, folder: Path) -> bool:
    """As the kernel has it with fs.protected_symlinks.

    Where all users can make files but not replace each other's, as in /tmp, only the user's own links and those of
    the folder's owner.
    """
    found = folder.stat()
    is_shared = bool(found.st_mode & stat.S_ISVTX and found.st_mode & stat.S_IWOTH)
    return not is_shared or link.st_uid in (os.geteuid(), found.st_uid)
