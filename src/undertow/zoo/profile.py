"""A published model as the planner sees it, before anything was measured.

In: a model of the zoo, a batch.  Out: its profile, times by each layer's share of the flops.
"""

from __future__ import annotations

from undertow.plan.profile import Kind, LayerProfile, Profile, TensorProfile
from undertow.zoo.model import Layer, Model


def profile_model(model: Model, *, batch: int | None = None) -> Profile:
    """One step of the published device with so many samples."""
    samples = batch or model.batch
    stretch = samples / model.batch
    return Profile(
        layers=tuple(
            LayerProfile(
                name=layer.name,
                tensors=_profile_tensors(layer, samples),
                forward_s=model.forward_s * share * stretch,
                backward_s=model.backward_s * share * stretch,
            )
            for layer, share in zip(model.layers, model.shares, strict=True)
        )
    )


def _profile_tensors(layer: Layer, samples: int) -> tuple[TensorProfile, ...]:
    rows = samples * layer.vectors
    has_rows = layer.kind in (Kind.LINEAR, Kind.EMBEDDING)
    return tuple(
        TensorProfile(
            name=tensor.name,
            shape=tensor.shape,
            kind=layer.kind,
            rows=min(rows, tensor.shape[0]) if layer.kind is Kind.EMBEDDING else rows,
        )
        if has_rows and len(tensor.shape) > 1
        else TensorProfile(name=tensor.name, shape=tensor.shape, kind=layer.kind)
        for tensor in layer.tensors
    )
