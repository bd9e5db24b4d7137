"""What a single-process script is told of the figures that it prints."""

from __future__ import annotations

import pytest

from undertow.script.single_process import SingleProcessScript
from undertow.settings import Settings

WORDS = "undertow: losses and accuracies that the script computes on training batches cover rank 0's share only"


def hear(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_it_is_said_once_when_the_first_loader_is_shared(capsys: pytest.CaptureFixture[str]) -> None:
    script = SingleProcessScript(Settings(world_size=2))
    script.start_sharing("the first loader")
    script.start_sharing("another loader")
    first, about, second = hear(capsys)
    assert (first, second) == ("undertow: the first loader", "undertow: another loader")
    assert about.startswith(WORDS)


@pytest.mark.parametrize("settings", [Settings(), Settings(world_size=2, rank=1)])
def test_one_worker_and_other_ranks_say_nothing(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    SingleProcessScript(settings).start_sharing("a loader")
    assert hear(capsys) == []
