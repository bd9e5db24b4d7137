"""Horovod's exceptions, under the names that scripts import."""

from __future__ import annotations

from undertow.horovod.errors import HorovodInternalError

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]


class HostsUpdatedInterrupt(RuntimeError):
    """A change of an elastic job's hosts.  Never raised here: a job keeps its workers."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework of another version than Horovod was built with.  Never raised here: nothing is built."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    return f"{name} {version} is imported, but Horovod was built with {name} {installed_version}"
