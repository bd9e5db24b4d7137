"""The published networks: layers, tensors and flops of each, without any framework."""

from __future__ import annotations

from undertow.plan.profile import Kind
from undertow.zoo.catalogue import MODELS, NETWORKS, find_model
from undertow.zoo.model import Layer, Model, Tensor

__all__ = ["MODELS", "NETWORKS", "Kind", "Layer", "Model", "Tensor", "find_model"]
