"""What `undertow run` tells its workers about scripts that were not written for it."""

from __future__ import annotations

from undertow.launch.changes import Changes, Switch
from undertow.settings import Batch, Horovod, PlainScripts, read_settings


def test_without_a_wish_the_users_variables_stay() -> None:
    assert Changes().to_environment() == {}


def test_every_wish_arrives() -> None:
    switches = {"plain": PlainScripts.OFF, "ddp": Switch.OFF, "horovod": Horovod.OFF}
    wishes = Changes(batch=Batch.SPLIT, overlap=True, seed_per_rank=True, **switches)  # type: ignore[arg-type]
    settings = read_settings(wishes.to_environment())
    assert settings.batch is Batch.SPLIT
    assert (settings.overlap, settings.seed_per_rank, settings.horovod) == (True, True, Horovod.OFF)
    assert (settings.plain, settings.ddp) == (PlainScripts.OFF, False)


def test_what_is_on_anyway_can_be_asked_for() -> None:
    settings = read_settings(Changes(batch=Batch.SAME, plain=PlainScripts.ON, ddp=Switch.ON).to_environment())
    assert (settings.batch, settings.plain, settings.ddp) == (Batch.SAME, PlainScripts.ON, True)
