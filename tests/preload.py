"""Everything that a worker imports, imported once by the fork server: its workers then start in milliseconds."""

from __future__ import annotations

import pytest  # noqa: F401  # test modules import it
import sklearn.datasets  # noqa: F401
import torch
import torch._dynamo  # optimizers import it at their first step: two seconds
import torch.distributed
import torch.distributed.algorithms.join
import torch.utils.checkpoint
import torch.utils.data  # noqa: F401

import undertow
import undertow.horovod.torch
import undertow.kvstore
import undertow.torch  # noqa: F401
