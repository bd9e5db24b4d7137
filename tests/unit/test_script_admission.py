"""The check at the first step of a script that another launcher has started several times."""

from __future__ import annotations

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from undertow.errors import ConfigError
from undertow.script import admission


@pytest.mark.parametrize("joins", [False, True])
def test_the_first_step_is_checked_beside_hooks_of_the_scripts_own(
    joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "knows_of_ranks", lambda: joins)
    monkeypatch.setattr(admission, "speaks_of_ranks", lambda script: True)
    monkeypatch.setattr(admission, "refuse_processes", _refuse)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    stop = admission.check_launcher("train.py")
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
