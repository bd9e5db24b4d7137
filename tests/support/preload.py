"""Everything that a worker imports, imported once by the fork server: its workers then start in milliseconds."""

from __future__ import annotations

import importlib

import pytest  # noqa: F401  # test modules import it
import sklearn.datasets  # noqa: F401
import torch
import torch._dynamo  # optimizers import it at their first step: two seconds
import torch.distributed
import torch.distributed.algorithms.join
import torch.utils.checkpoint
import torch.utils.data  # noqa: F401

# Not by their names: a script that runs in such a worker has not imported undertow.
for name in ("undertow.horovod.torch", "undertow.kvstore", "undertow.torch"):
    importlib.import_module(name)
