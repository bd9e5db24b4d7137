"""Imports, in the fork server, everything that workers import: workers then start in milliseconds."""

from __future__ import annotations

import importlib

import pytest  # noqa: F401  # test modules import it
import sklearn.datasets  # noqa: F401
import torch
import torch._dynamo  # takes two seconds; optimizers import it at their first step
import torch.distributed
import torch.distributed.algorithms.join
import torch.utils.checkpoint
import torch.utils.data  # noqa: F401

# By strings: the names of imported modules would count as imports of undertow by the script.
for name in ("undertow.horovod.torch", "undertow.kvstore", "undertow.torch"):
    importlib.import_module(name)
