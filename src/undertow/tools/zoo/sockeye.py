"""Translator like Sockeye's (Hieber et al., 2017) as measured for P3: two LSTM layers on each side, attention between.

In: its dimensions.  Out: its layers, in the order of the forward pass.
Its first layer is the source embedding, whose gradient is computed last, needed first, and has few nonzero rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from undertow.plan.profile import LayerKind
from undertow.tools.zoo.model import Layer, Tensor, linear_layer

GATES = 4  # of an LSTM: input, forget, cell, output


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    source_words: int = 17_192
    target_words: int = 7_710
    units: int = 512
    tokens: int = 25  # of a sentence, on both sides


def sockeye_layers(dims: Dimensions) -> tuple[Layer, ...]:
    units, tokens = dims.units, dims.tokens
    return (
        _embedding("source", dims.source_words, dims),
        _lstm("encoder.0", units, dims),
        _lstm("encoder.1", units, dims),
        linear_layer("start.0", units, units),
        linear_layer("start.1", units, units),
        linear_layer("attention.key", units, units, bias=False, vectors=tokens),
        _embedding("target", dims.target_words, dims),
        # The decoder reads the last word and its attention vector (input feeding).
        _lstm("decoder.0", 2 * units, dims),
        _lstm("decoder.1", units, dims),
        linear_layer("attention.query", units, units, bias=False, vectors=tokens),
        linear_layer("attention.score", units, 1, bias=False, vectors=tokens * tokens),
        linear_layer("combine", 2 * units, units, vectors=tokens),
        linear_layer("output", units, dims.target_words, vectors=tokens),
    )


def _embedding(name: str, words: int, dims: Dimensions) -> Layer:
    # A look-up multiplies nothing.
    weight = Tensor(f"{name}.weight", (words, dims.units))
    return Layer(name=name, kind=LayerKind.EMBEDDING, tensors=(weight,), flops=0.0, vectors=dims.tokens)


def _lstm(name: str, inputs: int, dims: Dimensions) -> Layer:
    rows = GATES * dims.units
    tensors = (
        Tensor(f"{name}.weight_ih_l0", (rows, inputs)),
        Tensor(f"{name}.weight_hh_l0", (rows, dims.units)),
        Tensor(f"{name}.bias_ih_l0", (rows,)),
        Tensor(f"{name}.bias_hh_l0", (rows,)),
    )
    return Layer(
        name=name, kind=LayerKind.LSTM, tensors=tensors, flops=2.0 * rows * (inputs + dims.units) * dims.tokens
    )
