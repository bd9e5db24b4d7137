"""The models of the zoo at a size that a CPU can train, and a small GPT, really trained.

The names of these tasks are here: listing them does not import torch.
"""

from __future__ import annotations

from undertow.tools.zoo import NETWORKS

CIFAR = "-cifar"  # behind the name of a network of the zoo
SOCKEYE = "sockeye-reversal"
GPT = "gpt"

REAL_NAMES: tuple[str, ...] = (*(f"{name}{CIFAR}" for name in NETWORKS), SOCKEYE, GPT)
