"""How a model's gradients are cut and carried under a schedule: the same for all virtual workers.

In: a profile, a plan, a schedule.  Out: slices of the real slicer, and who carries which tensor.
Tensors are numbered in the order in which their gradients are expected, from the last layer's to the first's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from undertow.core.dtypes import DType
from undertow.core.rounds import Op
from undertow.plan.cluster import Cluster
from undertow.plan.placement import Placement
from undertow.plan.plan import Plan
from undertow.plan.profile import Profile
from undertow.plan.scheme import IN_PARTS, Scheme
from undertow.plan.slicing import Cut, Slice, TensorSpec, Way, choose_way, cut
from undertow.sim.carriers import Carrier, make_carriers
from undertow.sim.schedules import Schedule


@dataclass(frozen=True)
class Route:
    """What a worker's delivery goes by."""

    schedule: Schedule
    carriers: Sequence[Carrier]
    of_tensor: Sequence[int | None]  # its carrier; none, if it is empty or goes another way
    of_layer: Sequence[Sequence[int]]  # the carriers that a layer's gate waits for
    places: Sequence[int]  # of each carrier in the order of use


class Layout:
    def __init__(self, profile: Profile, plan: Plan, schedule: Schedule, cluster: Cluster) -> None:
        self.schedule = schedule
        self._tensors = profile.tensors[::-1]
        self._plan = plan
        self._cluster = cluster
        self.sizes_bytes = {index: tensor.size_bytes for index, tensor in enumerate(self._tensors)}
        numbers = {tensor.name: index for index, tensor in enumerate(self._tensors)}
        self.layers = [[numbers[tensor.name] for tensor in layer.tensors] for layer in profile.layers]
        total_bytes = sum(self.sizes_bytes.values())
        self._slice_bytes = schedule.sizes.choose(total_bytes, shards=cluster.workers, bytes_per_s=cluster.bytes_per_s)
        self.credited_bytes = max(self._slice_bytes, schedule.sizes.fit_link(cluster.bytes_per_s))
        self._pieces = {c.tensor: c.push_bytes / max(1, cluster.workers - 1) for c in plan.choices}
        self.slices = self._cut()
        self.route = self._make_route()

    @property
    def reduced_bytes(self) -> dict[int, int]:
        """The sizes of the tensors that torch's process group sums."""
        return {index: size for index, size in self.sizes_bytes.items() if self._scheme(index) is Scheme.ALLREDUCE}

    def _scheme(self, index: int) -> Scheme:
        return self._plan.schemes[self._tensors[index].name]

    def _cut(self) -> list[Slice]:
        # Only bytes matter, so all elements have four.
        specs = [TensorSpec(t.name, t.shape, DType.FLOAT32, -(-t.size_bytes // 4)) for t in self._tensors]
        placement = Placement(self._cluster.workers)
        if self.schedule.whole_below:
            return _split_large(specs, self.schedule.whole_below, placement)
        schemes = self._plan.schemes
        ways: dict[int, Way] = {}
        for index, spec in enumerate(specs):
            if schemes[spec.name] is Scheme.ALLREDUCE:
                ways[index] = Way(0)
            elif schemes[spec.name] in IN_PARTS:
                ways[index] = self._choose_way(spec, schemes[spec.name])
        return cut(specs, Cut(0, self._slice_bytes), op=Op.MEAN, placement=placement, ways=ways)

    def _choose_way(self, spec: TensorSpec, scheme: Scheme) -> Way:
        return choose_way(
            spec,
            self._pieces[spec.name],
            self._slice_bytes,
            least_bytes=self.schedule.sizes.least,
            shards=self._cluster.workers,
            to_shards=scheme is Scheme.FACTORS_TO_SHARD,
        )

    def _make_route(self) -> Route:
        carriers = make_carriers(self._tensors, self.slices, self._pieces, self._cluster)
        of_tensor: list[int | None] = [None] * len(self._tensors)
        for number, carrier in enumerate(carriers):
            for index in carrier.members:
                of_tensor[index] = number
        of_layer = []
        for layer in self.layers:
            numbers = {of_tensor[index] for index in layer}
            of_layer.append(sorted(number for number in numbers if number is not None))
        # The last of the table is the first in the forward pass.
        places = [len(self._tensors) - 1 - max(carrier.members) for carrier in carriers]
        return Route(self.schedule, carriers, of_tensor, of_layer, places)


def _split_large(specs: Sequence[TensorSpec], whole_below: int, placement: Placement) -> list[Slice]:
    """Every tensor for itself; from that size on with a piece for each server."""
    slices: list[Slice] = []
    for index, spec in enumerate(specs):
        pieces = placement.shards if spec.elements >= whole_below else 1
        size_bytes = max(1, -(-spec.elements // pieces)) * spec.dtype.numpy.itemsize
        for item in cut([spec], Cut(len(slices), size_bytes), op=Op.MEAN, placement=placement):
            slices.append(replace(item, parts=tuple(replace(part, tensor=index) for part in item.parts)))
    return slices
