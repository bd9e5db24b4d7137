"""Options of `undertow run` that become variables of the workers."""

from __future__ import annotations

import pytest

from undertow.errors import ConfigError
from undertow.launch.worker_environment import OnOff, SharingOptions, WorkerOptions
from undertow.settings import Batch, Horovod, PlainScripts, read_settings


def test_without_options_the_users_variables_stay() -> None:
    assert WorkerOptions().to_environment() == {}


def test_every_option_becomes_a_variable() -> None:
    switches = {"plain": PlainScripts.OFF, "ddp": OnOff.OFF, "horovod": Horovod.OFF}
    options = WorkerOptions(batch=Batch.SPLIT, overlap=True, seed_per_rank=True, **switches)  # type: ignore[arg-type]
    settings = read_settings(options.to_environment())
    assert settings.batch is Batch.SPLIT
    assert (settings.overlap, settings.seed_per_rank, settings.horovod) == (True, True, Horovod.OFF)
    assert (settings.plain, settings.ddp) == (PlainScripts.OFF, False)


def test_a_default_can_be_given_explicitly() -> None:
    settings = read_settings(WorkerOptions(batch=Batch.SAME, plain=PlainScripts.ON, ddp=OnOff.ON).to_environment())
    assert (settings.batch, settings.plain, settings.ddp) == (Batch.SAME, PlainScripts.ON, True)


def test_sharing_options_become_variables() -> None:
    assert SharingOptions().to_environment("train.py", is_module=False, environ={}) == {}
    made = SharingOptions(shares=True).to_environment("src/train.py", is_module=False, environ={})
    assert made == {"UNDERTOW_SHARE": "1", "UNDERTOW_SHARE_NAME": "train"}
    made = SharingOptions(shares=True).to_environment("package.fit", is_module=True, environ={})
    assert made["UNDERTOW_SHARE_NAME"] == "fit"
    named = {"UNDERTOW_SHARE_NAME": "user's"}
    assert "UNDERTOW_SHARE_NAME" not in SharingOptions(shares=True).to_environment(
        "a.py", is_module=False, environ=named
    )
    made = SharingOptions(shares=True, name="mine").to_environment("a.py", is_module=False, environ=named)
    assert made["UNDERTOW_SHARE_NAME"] == "mine"


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (SharingOptions(weight=2.0), "--weight"),
        (SharingOptions(urgent=True), "--urgent"),
        (SharingOptions(name="a"), "--share-name"),
    ],
)
def test_sharing_options_need_a_job_that_shares(options: SharingOptions, option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is for jobs that share their devices: add --share"):
        options.to_environment("a.py", is_module=False, environ={})
    assert options.to_environment("a.py", is_module=False, environ={"UNDERTOW_SHARE": "1"})
