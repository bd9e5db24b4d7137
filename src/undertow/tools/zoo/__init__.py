"""Published networks: their layers, tensors and flops, without any framework."""

from __future__ import annotations

from undertow.plan.profile import LayerKind
from undertow.tools.zoo.catalogue import MODELS, NETWORKS, find_model
from undertow.tools.zoo.model import Layer, Model, Tensor

__all__ = ["MODELS", "NETWORKS", "Layer", "LayerKind", "Model", "Tensor", "find_model"]
