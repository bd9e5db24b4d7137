"""The text: the standard library's source, the same every time, never longer than requested."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
import torch

from undertow.errors import ConfigError
from undertow.tools.lab.real.tasks import MOST_BYTES, draw_windows, load_text, read_text


def test_the_text_is_the_standard_library_in_order() -> None:
    text = load_text()
    assert text.dtype == torch.uint8
    assert len(text) == MOST_BYTES
    first = min(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    assert bytes(text[:1000].tolist()) == first.read_bytes()[:1000]


def test_files_are_read_by_name_and_cut_at_the_limit(tmp_path: Path) -> None:
    for name, content in (("b.py", "second"), ("a.py", "first "), ("c.txt", "never"), ("d.py", " third")):
        (tmp_path / name).write_text(content)
    assert bytes(read_text(tmp_path, 100).tolist()) == b"first second third"
    assert bytes(read_text(tmp_path, 8).tolist()) == b"first se"


def test_a_python_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no \\*.py in {tmp_path}"):
        read_text(tmp_path, 100)


def test_windows_are_pieces_of_the_text_from_anywhere() -> None:
    text = torch.arange(10, dtype=torch.uint8)
    windows = draw_windows(text, torch.Generator().manual_seed(0), count=200, length=4)
    assert windows.dtype == torch.int64
    starts = windows[:, :1]
    assert torch.equal(windows, starts + torch.arange(4))
    assert set(starts.flatten().tolist()) == set(range(7))


def test_a_window_may_be_the_whole_text() -> None:
    text = torch.arange(4, dtype=torch.uint8)
    assert draw_windows(text, torch.Generator(), count=2, length=4).tolist() == [[0, 1, 2, 3]] * 2


def test_a_window_longer_than_the_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="a text of 4 bytes has no window of 5 bytes"):
        draw_windows(torch.arange(4, dtype=torch.uint8), torch.Generator(), count=1, length=5)
