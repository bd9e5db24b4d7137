"""Parts of Horovod that undertow does not have: what an import of one says.

In: the name of a module.  Out: an ImportError that says what to use instead.  Libraries that try an import and catch
ImportError go on without it.
"""

from __future__ import annotations

from undertow.horovod.errors import MissingModule

_FRAMEWORK = (
    "undertow's Horovod serves PyTorch only: use horovod.torch, or install Horovod itself and run with --horovod off"
)
_CLUSTER = "undertow does not start workers through it: run the script with `undertow run` or torchrun on each host"
ELASTIC = (
    "elastic training is not there yet: a job keeps the workers it was started with. Save checkpoints, and start the "
    "job again with `undertow run` or torchrun when a worker is lost"
)

_INSTEAD = {
    "torch.elastic": ELASTIC,
    "common.elastic": ELASTIC,
    "tensorflow": _FRAMEWORK,
    "keras": _FRAMEWORK,
    "mxnet": _FRAMEWORK,
    "spark": _CLUSTER,
    "ray": _CLUSTER,
    "data": "load data with torch.utils.data.DataLoader; its num_workers loads ahead of training",
}


def missing_module(part: str) -> MissingModule:
    """The error for an import of `horovod.<part>`."""
    return MissingModule(f"horovod.{part}: {_INSTEAD[part]}", name=f"horovod.{part}")
