"""A message explains the figures that a single-process script prints."""

from __future__ import annotations

import pytest

from undertow.script.single_process import SingleProcessScript
from undertow.settings import Settings

WORDS = "undertow: losses and accuracies that the script computes on training batches cover rank 0's share only"


def read_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_the_figures_are_explained_once_when_the_first_loader_is_shared(capsys: pytest.CaptureFixture[str]) -> None:
    script = SingleProcessScript(Settings(world_size=2))
    script.start_sharing("the first loader")
    script.start_sharing("another loader")
    first, about, second = read_lines(capsys)
    assert (first, second) == ("undertow: the first loader", "undertow: another loader")
    assert about.startswith(WORDS)


@pytest.mark.parametrize("settings", [Settings(), Settings(world_size=2, rank=1)])
def test_a_single_worker_and_other_ranks_print_nothing(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    SingleProcessScript(settings).start_sharing("a loader")
    assert read_lines(capsys) == []
