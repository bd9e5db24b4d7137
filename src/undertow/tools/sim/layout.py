"""Layout of a model's gradients under a schedule, the same for all virtual workers.

In: a profile, a plan, a schedule.  Out: slices of the real slicer, and the syncer of each tensor.
Tensors are numbered in the expected order of their gradients, from the last layer to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import Cut, Placement, Slice, TensorSpec, cut
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Plan
from undertow.plan.profile import Profile
from undertow.plan.scheme import Scheme
from undertow.plan.slice_plan import make_slice_plan
from undertow.tools.sim.schedules import Schedule
from undertow.tools.sim.syncers import VirtualSyncer, make_syncers


@dataclass(frozen=True)
class Route:
    """Syncers of a worker's gradients."""

    schedule: Schedule
    syncers: Sequence[VirtualSyncer]
    of_tensor: Sequence[int | None]  # index of its syncer; None if it is empty or the ring sums it
    of_layer: Sequence[Sequence[int]]  # the syncers that a layer's gate waits for
    places: Sequence[int]  # each syncer's place in the order of use


class Layout:
    """Slices and syncers of a model under a schedule."""

    def __init__(
        self, profile: Profile, plan: Plan, schedule: Schedule, cluster: Cluster, owners: Sequence[int]
    ) -> None:
        self.schedule = schedule
        self._owners = owners
        self._tensors = profile.tensors[::-1]
        self._plan = plan
        self._cluster = cluster
        self.sizes_bytes = {index: tensor.size_bytes for index, tensor in enumerate(self._tensors)}
        numbers = {tensor.name: index for index, tensor in enumerate(self._tensors)}
        self.layers = [[numbers[tensor.name] for tensor in layer.tensors] for layer in profile.layers]
        total_bytes = sum(self.sizes_bytes.values())
        self._slice_bytes = schedule.sizes.choose(total_bytes, shards=len(owners), bytes_per_s=cluster.bytes_per_s)
        self._slice_plan = make_slice_plan(
            plan, self._slice_bytes, sizes=schedule.sizes, bytes_per_s=cluster.bytes_per_s
        )
        self.credited_bytes = self._slice_plan.credited_bytes
        self.slices = self._cut()
        self.route = self._make_route()

    @property
    def reduced_bytes(self) -> dict[int, int]:
        """Sizes of the tensors that torch's process group sums."""
        schemes = [self._plan.schemes[tensor.name] for tensor in self._tensors]
        return {index: size for index, size in self.sizes_bytes.items() if schemes[index] is Scheme.ALLREDUCE}

    def _cut(self) -> list[Slice]:
        # Only bytes matter, so all elements have four.
        specs = [TensorSpec(t.name, t.shape, DType.FLOAT32, -(-t.size_bytes // 4)) for t in self._tensors]
        placement = Placement(self._owners)
        if self.schedule.whole_below:
            return _split_large(specs, self.schedule.whole_below, placement)
        least_bytes, shards = self.schedule.sizes.least, len(self._owners)
        chunkings = {
            index: chunking
            for index, spec in enumerate(specs)
            if (chunking := self._slice_plan.choose_chunking(spec, least_bytes=least_bytes, shards=shards))
        }
        return cut(specs, Cut(0, self._slice_bytes), op=Op.MEAN, placement=placement, chunkings=chunkings)

    def _make_route(self) -> Route:
        syncers = make_syncers(self._tensors, self.slices, self._slice_plan.peer_bytes, self._cluster, self._owners)
        of_tensor: list[int | None] = [None] * len(self._tensors)
        for number, syncer in enumerate(syncers):
            for index in syncer.members:
                of_tensor[index] = number
        of_layer = []
        for layer in self.layers:
            numbers = {of_tensor[index] for index in layer}
            of_layer.append(sorted(number for number in numbers if number is not None))
        # The table's last tensor is the first in the forward pass.
        places = [len(self._tensors) - 1 - max(syncer.members) for syncer in syncers]
        return Route(self.schedule, syncers, of_tensor, of_layer, places)


def _split_large(specs: Sequence[TensorSpec], whole_below: int, placement: Placement) -> list[Slice]:
    """Return the slices of each tensor, which is split among all servers if it has `whole_below` elements or more."""
    slices: list[Slice] = []
    for index, spec in enumerate(specs):
        parts = len(placement.owners) if spec.elements >= whole_below else 1
        size_bytes = max(1, -(-spec.elements // parts)) * spec.dtype.numpy.itemsize
        for item in cut([spec], Cut(len(slices), size_bytes), op=Op.MEAN, placement=placement):
            slices.append(replace(item, ranges=tuple(replace(each, tensor=index) for each in item.ranges)))
    return slices
