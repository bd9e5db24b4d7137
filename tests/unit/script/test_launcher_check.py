"""The check at the first step of a script that another launcher has started in several processes."""

from __future__ import annotations

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from undertow.errors import ConfigError
from undertow.script import launcher_check


@pytest.mark.parametrize("joins", [False, True])
def test_the_first_step_is_checked_beside_the_scripts_own_hooks(joins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_check, "has_joined", lambda: joins)
    monkeypatch.setattr(launcher_check, "mentions_ranks", lambda script: True)
    monkeypatch.setattr(launcher_check, "refuse_processes", _refuse)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    stop = launcher_check.check_launcher("train.py")
    other = register_optimizer_step_pre_hook(lambda *given: None)
    try:
        if not joins:
            with pytest.raises(ConfigError, match="would train alone"):
                optimizer.step()
        optimizer.step()
    finally:
        other.remove()
        stop()


def _refuse(*given: object, **options: object) -> None:
    raise ConfigError("each process would train alone")
