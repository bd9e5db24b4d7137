"""Tasks that compute for real: the models of the zoo at a size that a CPU can train, and a small GPT.

Only their names are here, so that listing them does not import torch.
"""

from __future__ import annotations

from undertow.tools.zoo import NETWORKS

CIFAR = "-cifar"  # follows the name of a network of the zoo
SOCKEYE = "sockeye-reversal"
GPT = "gpt"

REAL_NAMES: tuple[str, ...] = (*(f"{name}{CIFAR}" for name in NETWORKS), SOCKEYE, GPT)
