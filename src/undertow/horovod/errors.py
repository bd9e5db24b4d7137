"""Errors of Horovod's calls: undertow's errors that are also of the types that users of Horovod catch.

HorovodInternalError(UndertowError, RuntimeError)
├── CallMismatch(MismatchError)   ranks differ in a call; later calls still work
├── WorkerLost(PeerLost)          a worker is gone; no later call works
└── BadCall(ConfigError)          this rank requested something impossible; also a ValueError
RunFailed(UndertowError, RuntimeError)                       the function of horovod.run failed on a worker
NotThere(ConfigError, AttributeError, NotImplementedError)   a feature of Horovod that undertow lacks
MissingModule(ImportError, ConfigError)                      a module of Horovod that undertow lacks
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from undertow.errors import ConfigError, MismatchError, PeerLost, UndertowError, recast

_FRAMEWORK = (
    "undertow's Horovod supports PyTorch only: use horovod.torch, or install Horovod itself and run with --horovod off"
)
_CLUSTER = "undertow does not start workers through it: run the script with `undertow run` or torchrun on each host"
ELASTIC = (
    "elastic training is not supported yet: a job keeps the workers it was started with. Save checkpoints, and restart "
    "the job with `undertow run` or torchrun when a worker is lost"
)

INSTEAD = {  # what to use instead of each module
    "torch.elastic": ELASTIC,
    "common.elastic": ELASTIC,
    "tensorflow": _FRAMEWORK,
    "keras": _FRAMEWORK,
    "mxnet": _FRAMEWORK,
    "spark": _CLUSTER,
    "ray": _CLUSTER,
    "data": "load data with torch.utils.data.DataLoader; its num_workers loads ahead of training",
}


class HorovodInternalError(UndertowError, RuntimeError):
    """A failed call."""


class CallMismatch(HorovodInternalError, MismatchError):
    """A call in which ranks give different arguments under the same name."""


class WorkerLost(HorovodInternalError, PeerLost):
    """A worker that has died, stopped or left."""


class BadCall(HorovodInternalError, ConfigError):
    """An impossible request."""


class NotThere(ConfigError, AttributeError, NotImplementedError):
    """A feature of Horovod that undertow does not have."""


class MissingModule(ImportError, ConfigError):
    """A module of Horovod that undertow does not have."""


def missing_module(name: str) -> MissingModule:
    """Return the error for an import of `horovod.<name>`, a module that undertow does not have.

    Libraries that try the import and catch ImportError continue without the module.
    """
    return MissingModule(f"horovod.{name}: {INSTEAD[name]}", name=f"horovod.{name}")


class RunFailed(UndertowError, RuntimeError):
    """A failed worker of `horovod.run`."""


@contextmanager
def translated() -> Iterator[None]:
    """Convert errors of the engine inside the block to the errors that users of Horovod expect."""
    try:
        yield
    except (HorovodInternalError, ConfigError):
        raise
    except UndertowError as error:
        is_mismatch, is_loss = isinstance(error, MismatchError), isinstance(error, PeerLost)
        kind = CallMismatch if is_mismatch else WorkerLost if is_loss else HorovodInternalError
        raise recast(error, kind) from error
