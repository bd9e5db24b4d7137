"""Files that undertow writes: never through another user's link, and traces readable by their own user only."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from undertow.files import create_private, replace_file, write_file, write_whole
from undertow.observe.trace.chrome import TraceHeader
from undertow.observe.trace.merging import MERGED, merge
from undertow.observe.trace.trace_file import TraceFile
from undertow.tracing.window import Window


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_file_replaces_a_link_and_leaves_its_target_alone(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "out"
    victim.write_text("precious")
    path.symlink_to(victim)
    with create_private(path) as file:
        file.write(b"ours")
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("precious", "ours", False)
    assert mode_of(path) == 0o600
    assert sorted(tmp_path.iterdir()) == [path, victim]


def test_a_private_file_replaces_an_own_one_that_all_can_read(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old and long")
    create_private(path).close()
    assert (path.read_bytes(), mode_of(path)) == (b"", 0o600)


def test_a_folder_is_not_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(IsADirectoryError):
        create_private(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_that_is_not_completed_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with suppress(ZeroDivisionError), replace_file(path) as file:
        file.write(b"half of the new one")
        raise ZeroDivisionError
    assert [path.read_text(), *tmp_path.iterdir()] == ["old", path]


def test_traces_are_for_their_user_only_and_follow_no_link(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "traces"
    folder.mkdir()
    victim.write_text("precious")
    for name in ("rank-0.json", MERGED):
        (folder / name).symlink_to(victim)
    TraceFile(folder, TraceHeader(rank=0, world_size=1, host="host", version="1"), Window(0, 9)).close()
    merge(folder)
    assert victim.read_text() == "precious"
    assert {path.name: mode_of(path) for path in folder.iterdir()} == {"rank-0.json": 0o600, MERGED: 0o600}


@pytest.mark.parametrize("write", [write_file, write_whole])
def test_a_link_of_another_user_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "out"
    victim.write_text("precious")
    path.symlink_to(victim)
    monkeypatch.setattr("undertow.files._is_trusted", lambda link, folder: False)
    with pytest.raises(OSError, match="a symbolic link of another user, which is not followed"):
        write(path, b"ours")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(("mode", "is_trusted"), [(0o1777, False), (0o777, True), (0o1755, True), (0o755, True)])
def test_links_of_others_are_followed_but_where_all_users_make_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_trusted: bool
) -> None:
    """As by the kernel, which refuses them in folders such as /tmp only."""
    path, folder = tmp_path / "shared" / "out", tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    path.symlink_to(tmp_path / "target")
    write_file(path, b"ours")
    assert (tmp_path / "target").read_bytes() == b"ours"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    real = Path.stat
    monkeypatch.setattr(
        Path, "stat", lambda self, **o: os.stat_result([*real(self, **o)[:4], os.getuid() + 2, *real(self, **o)[5:10]])
    )
    with nullcontext() if is_trusted else pytest.raises(OSError, match="of another user"):
        write_file(path, b"theirs")
    assert (tmp_path / "target").read_bytes() == (b"theirs" if is_trusted else b"ours")


@pytest.mark.parametrize("write", [write_file, write_whole])
def test_what_a_user_names_may_be_new_old_an_own_link_or_a_pipe(
    tmp_path: Path, write: Callable[[Path, bytes], None]
) -> None:
    for name in ("new", "old"):
        (tmp_path / "old").write_text("a longer text than the new one")
        write(tmp_path / name, b"data")
        assert (tmp_path / name).read_bytes() == b"data"
        assert mode_of(tmp_path / name) == 0o644
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write(tmp_path / "link", b"data")
    assert ((tmp_path / "target").read_bytes(), (tmp_path / "link").is_symlink()) == (b"data", True)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write(tmp_path / "pipe", b"data")
    assert os.read(reader, 9) == b"data"
    os.close(reader)
