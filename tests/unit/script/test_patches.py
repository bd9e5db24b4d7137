"""The table of patches: every target exists in this torch, and every patch can be undone."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from undertow.errors import ConfigError
from undertow.script.patches import (
    CHECKED_WITH,
    DDP_PATCHES,
    LIBRARY_PATCHES,
    SINGLE_PROCESS_PATCHES,
    AppliedPatches,
    Patch,
)
from undertow.script.single_process import SingleProcessScript
from undertow.settings import Settings


def make_script() -> SingleProcessScript:
    return SingleProcessScript(Settings())


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
    rows = (*DDP_PATCHES, *SINGLE_PROCESS_PATCHES, *LIBRARY_PATCHES)
    assert all(len(patch.reason.split()) > 2 for patch in rows)
    assert len({patch.target for patch in rows}) == len(rows)


def test_the_table_was_checked_with_the_torch_that_is_tested() -> None:
    assert torch.__version__.partition("+")[0] == CHECKED_WITH


def test_patches_are_undone_in_parts_or_all_at_once() -> None:
    before, patches, script = read_places(), AppliedPatches(), make_script()
    try:
        patches.apply(DDP_PATCHES, script)
        patches.apply(SINGLE_PROCESS_PATCHES, script)
        assert all(now is not then for now, then in zip(read_places(), before, strict=True))
        patches.undo(SINGLE_PROCESS_PATCHES)
        assert [now is then for now, then in zip(read_places(), before, strict=True)] == [False] * 2 + [True] * 4
    finally:
        patches.undo()
    assert all(now is then for now, then in zip(read_places(), before, strict=True))


def test_later_replacements_by_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    patches = AppliedPatches()
    monkeypatch.setattr(torch, "save", torch.save)  # put back at the end
    patches.apply(SINGLE_PROCESS_PATCHES, make_script())
    theirs = torch.save = lambda *arguments: None
    patches.undo()
    assert torch.save is theirs


@pytest.mark.parametrize("path", ["DataLoader._gone", "Gone.__init__"])
def test_a_torch_without_a_target_is_refused(path: str) -> None:
    row = Patch(f"torch.utils.data:{path}", lambda original, script: original, "for this test only")
    words = rf"this torch has no {re.escape(path)} in torch\.utils\.data.*--plain off"
    with pytest.raises(ConfigError, match=words):
        AppliedPatches().apply((row,), make_script())
