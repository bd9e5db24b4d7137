"""What calls of Horovod's raise: errors of ours that are also of the kinds that its users catch.

HorovodInternalError(UndertowError, RuntimeError)
├── CallMismatch(MismatchError)   ranks differ in a call; later calls still work
├── WorkerLost(PeerLost)          a worker is gone; nothing works any more
└── BadCall(ConfigError)          this rank asked for something impossible; a ValueError too
RunFailed(UndertowError, RuntimeError)                       a function of horovod.run failed on a worker
NotThere(ConfigError, AttributeError, NotImplementedError)   a part of Horovod that there is not
MissingModule(ImportError, ConfigError)                      a module of Horovod's that there is not
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from undertow.errors import ConfigError, MismatchError, PeerLost, UndertowError


class HorovodInternalError(UndertowError, RuntimeError):
    """A call has failed."""


class CallMismatch(HorovodInternalError, MismatchError):
    """Ranks differ in what they do under one name."""


class WorkerLost(HorovodInternalError, PeerLost):
    """A worker died, stopped or left."""


class BadCall(HorovodInternalError, ConfigError):
    """What was asked for is impossible."""


class NotThere(ConfigError, AttributeError, NotImplementedError):
    """Horovod has it, we do not."""


class MissingModule(ImportError, ConfigError):
    """Horovod has this module, undertow does not."""


class RunFailed(UndertowError, RuntimeError):
    """A worker of `horovod.run` failed."""


@contextmanager
def translated() -> Iterator[None]:
    """Errors of the engine come out of the block as users of Horovod expect them."""
    try:
        yield
    except (HorovodInternalError, ConfigError):
        raise
    except UndertowError as error:
        raise _translate(error) from error


def _translate(error: UndertowError) -> HorovodInternalError:
    if isinstance(error, MismatchError):
        return CallMismatch(str(error))
    if isinstance(error, PeerLost):
        return WorkerLost(str(error))
    return HorovodInternalError(str(error))
