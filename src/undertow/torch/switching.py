"""From one plan to the next: slices that are cut anew, and layers that hand over parts from then on.

In: schemes and a slice size, the same on all ranks.  Out: first everything is prepared, then, one pass
later, used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from undertow.plan.scheme import IN_PARTS, Scheme
from undertow.plan.slicing import TensorSpec, Way, choose_way
from undertow.runtime.group import Group
from undertow.torch.gradients import Gradients
from undertow.torch.layers import Layer
from undertow.torch.sources import Source


@dataclass(frozen=True)
class Ways:
    """How the gradients of a model travel."""

    slice_bytes: int
    credited_bytes: int  # of a slice that fits the links; the same, or larger
    schemes: Mapping[str, Scheme]  # of tensors that are not simply dense
    piece_bytes: Mapping[str, float]  # what a worker is expected to send of each to one other


class Switch:
    """Of one wrapped module."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._next: Ways | None = None
        self._swaps: list[Callable[[], None]] = []  # from the next forward pass on
        # From the next pass on: sources of what travels in parts, and what goes through torch's process group.
        self._coming: list[tuple[Gradients, dict[int, Source], list[int]]] = []

    @property
    def is_prepared(self) -> bool:
        return self._next is not None

    def prepare(self, ways: Ways, all_gradients: Sequence[Gradients], layers: Mapping[torch.Tensor, Layer]) -> None:
        """Make the new slices known, and let the next forward pass hand over what they need."""
        self._next, self._coming = ways, []
        for gradients in all_gradients:
            sources: dict[int, Source] = {}
            cuts: dict[int, Way] = {}
            reduced = [
                index
                for index in range(len(gradients.parameters))
                if ways.schemes.get(gradients.name(index)) is Scheme.ALLREDUCE and gradients.can_reduce(index)
            ]
            cuts.update(dict.fromkeys(reduced, Way(0)))
            for index, parameter in enumerate(gradients.parameters):
                if ways.schemes.get(gradients.name(index)) in IN_PARTS and parameter in layers:
                    layer = layers[parameter]
                    sources[index] = gradients.sources.get(index) or gradients.make_source(index, layer.form)
                    self._swaps.append(functools.partial(layer.attach, sources[index]))
                    cuts[index] = self._choose_cut(gradients.table.specs[index], ways)
            gradients.table.recut(ways.slice_bytes, cuts)
            self._coming.append((gradients, sources, reduced))

    def swap_layers(self) -> None:
        """A forward pass begins.  Not earlier: checkpoints compute in backward what they did in forward."""
        for swap in self._swaps:
            swap()
        self._swaps = []

    def change(self, layers: Mapping[torch.Tensor, Layer]) -> Ways:
        """Use them.  What a layer hands over that is not wanted any more, its backward makes a gradient of."""
        assert self._next is not None
        for gradients, sources, reduced in self._coming:
            gradients.change_slices(sources, reduced)
            for index, parameter in enumerate(gradients.parameters):
                if index not in sources and parameter in layers:
                    self._swaps.append(layers[parameter].detach)
        self._group.resize(self._next.credited_bytes)
        ways, self._next, self._coming = self._next, None, []
        return ways

    def _choose_cut(self, spec: TensorSpec, ways: Ways) -> Way:
        return choose_way(
            spec,
            ways.piece_bytes.get(spec.name, 0.0),
            ways.slice_bytes,
            least_bytes=self._group.sizes.least,
            shards=self._group.size,
            to_shards=ways.schemes[spec.name] is Scheme.FACTORS_TO_SHARD,
        )
