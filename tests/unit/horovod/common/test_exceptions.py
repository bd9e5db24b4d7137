"""Horovod's exceptions keep what they are about."""

from __future__ import annotations

from undertow.horovod.common import exceptions


def test_exceptions_keep_their_arguments() -> None:
    assert exceptions.HostsUpdatedInterrupt(skip_sync=True).skip_sync
    mismatch = exceptions.HorovodVersionMismatchError("torch", "2.1", "2.0")
    assert (mismatch.name, mismatch.version, mismatch.installed_version) == ("torch", "2.1", "2.0")
    assert isinstance(mismatch, ImportError)
    assert str(mismatch) == exceptions.get_version_mismatch_message("torch", "2.1", "2.0")
