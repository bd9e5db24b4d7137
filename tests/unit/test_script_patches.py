"""The table of patches: every row is needed to be true of this torch, and can be taken back."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from undertow.errors import ConfigError
from undertow.script.patches import CHECKED_WITH, DOOR, LIBRARIES, PLAIN, Patch, Patches
from undertow.script.plain import Plain
from undertow.settings import Settings


def make_plain() -> Plain:
    return Plain(Settings())


def read_places() -> list[Any]:
    return [
        torch.nn.parallel.DistributedDataParallel,
        torch.nn.parallel.distributed.DistributedDataParallel,
        torch.optim.Optimizer.__init__,
        torch.utils.data.DataLoader.__dict__["_index_sampler"],
        torch.save,
        torch.serialization.load,
    ]


def test_each_row_has_its_reason() -> None:
    rows = (*DOOR, *PLAIN, *LIBRARIES)
    assert all(len(patch.reason.split()) > 2 for patch in rows)
    assert len({patch.place for patch in rows}) == len(rows)


def test_the_table_was_checked_with_the_torch_that_is_tested() -> None:
    assert torch.__version__.partition("+")[0] == CHECKED_WITH


def test_what_is_applied_is_undone_in_parts_or_altogether() -> None:
    before, patches, plain = read_places(), Patches(), make_plain()
    try:
        patches.apply(DOOR, plain)
        patches.apply(PLAIN, plain)
        assert all(now is not then for now, then in zip(read_places(), before, strict=True))
        patches.undo(PLAIN)
        assert [now is then for now, then in zip(read_places(), before, strict=True)] == [False] * 2 + [True] * 4
    finally:
        patches.undo()
    assert all(now is then for now, then in zip(read_places(), before, strict=True))


def test_what_somebody_else_has_put_there_since_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    patches = Patches()
    monkeypatch.setattr(torch, "save", torch.save)  # put back at the end
    patches.apply(PLAIN, make_plain())
    theirs = torch.save = lambda *arguments: None
    patches.undo()
    assert torch.save is theirs


@pytest.mark.parametrize("path", ["DataLoader._gone", "Gone.__init__"])
def test_a_torch_without_one_of_the_places_is_refused(path: str) -> None:
    row = Patch(f"torch.utils.data:{path}", lambda original, plain: original, "for this test only")
    words = rf"this torch has no {re.escape(path)} in torch\.utils\.data.*--plain off"
    with pytest.raises(ConfigError, match=words):
        Patches().apply((row,), make_plain())
