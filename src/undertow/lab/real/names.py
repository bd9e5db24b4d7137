"""The names of the real tasks.  Listing them does not import torch."""

from __future__ import annotations

from undertow.zoo import NETWORKS

CIFAR = "-cifar"  # behind the name of a network of the zoo
SOCKEYE = "sockeye-reversal"
GPT = "gpt"

REAL_NAMES: tuple[str, ...] = (*(f"{name}{CIFAR}" for name in NETWORKS), SOCKEYE, GPT)
