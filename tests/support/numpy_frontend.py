"""A frontend for models of numpy arrays: all that a framework needs to train through `undertow.sync`.

In: a multilayer perceptron and batches.  Out: synchronous SGD over all workers, whose slices are sent in the order of
use, whose next forward pass waits for one layer at a time, and whose plan changes the schemes while it trains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from undertow.engine.core.dtypes import DType, dtype_of
from undertow.engine.core.rounds import Array
from undertow.engine.core.slicing import TensorSpec
from undertow.engine.interface import Group
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Plan
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile
from undertow.sync.broadcast import ArrayBroadcast
from undertow.sync.gradient_table import GradientTable
from undertow.sync.links import measure_cluster, measure_shard_products
from undertow.sync.order import UseOrder
from undertow.sync.payload import NO_GRADIENT, describe, find_starts
from undertow.sync.planning import Planning
from undertow.sync.slot import NO_FACTORS, Field, InPlace, Payload, WorkerFactors

SURVEYED_PASSES = 2


class Linear:
    """A layer whose backward computes gradients, or hands over the factors of the weight's gradient."""

    def __init__(self, name: str, weight: Array) -> None:
        self.name = name
        self.weight = weight  # M x N
        self.bias = np.zeros(len(weight), weight.dtype)
        self.gradients: dict[str, Array | None] = {"weight": None, "bias": None}
        self.factors: tuple[Array, Array] | None = None  # of the last backward
        self.hands_over_factors = False
        self._inputs = np.empty(0)

    def forward(self, inputs: Array) -> Array:
        self._inputs = inputs
        return inputs @ self.weight.T + self.bias

    def backward(self, deltas: Array) -> Array:
        self.gradients = {"weight": None, "bias": deltas.sum(0)}
        if self.hands_over_factors:
            self.factors = self._inputs, deltas
        else:
            self.gradients["weight"] = deltas.T @ self._inputs
        return deltas @ self.weight


class NumpySlot:
    """The gradient of one tensor of a layer, and for a weight its factors."""

    def __init__(self, layer: Linear, kind: str) -> None:
        self.name = f"{layer.name}.{kind}"
        self.layer = layer
        self.values: Array = getattr(layer, kind)
        self.shape: tuple[int, ...] = self.values.shape
        self.dtype: np.dtype[Any] = self.values.dtype
        self.fields: Sequence[Field] = (Field(self.shape[-1]), Field(self.shape[0]))
        self._kind = kind

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.shape, dtype_of(self.dtype), self.values.size)

    @property
    def gradient(self) -> Array | None:
        return self.layer.gradients[self._kind]

    # As a dense gradient

    @property
    def has_gradient(self) -> bool:
        return self.gradient is not None

    def check(self) -> None:
        assert self.gradient is None or self.gradient.shape == self.shape

    def expose(self, hint: Any) -> InPlace | None:
        return None if self.gradient is None else InPlace(self.gradient.reshape(-1), True)

    def allocate(self, elements: int) -> Array:
        return np.empty(elements, self.dtype)

    def segment(self, memory: Array, start: int, elements: int) -> Array:
        return memory[start : start + elements]

    def as_array(self, memory: Array) -> Array:
        return memory

    def copy_out(self, segment: Array) -> None:
        segment[:] = 0 if self.gradient is None else self.gradient.reshape(-1)

    def copy_in(self, segment: Array) -> None:
        self.replace(segment.reshape(self.shape).copy())

    # As factors

    def attach(self) -> None:
        self.layer.hands_over_factors = True

    def detach(self) -> None:
        self.layer.hands_over_factors = False

    def take_factors(self) -> WorkerFactors[Array]:
        factors, self.layer.factors = self.layer.factors, None
        if factors is None and self.gradient is None:
            return NO_FACTORS
        return WorkerFactors(factors or (), self.gradient)

    def pack(self, factors: WorkerFactors[Array]) -> Payload:
        if not factors.is_present:
            return NO_GRADIENT
        arrays = [*factors.factors, *([] if factors.whole is None else [factors.whole])]
        starts = find_starts([array.nbytes for array in arrays])
        memory = np.zeros(starts[-1], np.uint8)
        for array, start in zip(arrays, starts, strict=False):
            memory[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        rows, dtype = (len(factors.factors[0]), dtype_of(self.dtype)) if factors.factors else (0, None)
        return Payload(memory, describe(rows, dtype, has_whole=factors.whole is not None))

    def split_rows(self, factors: WorkerFactors[Array], rows: range) -> WorkerFactors[Array]:
        own = slice(rows.start, rows.stop)
        deltas = tuple(delta[:, own] for delta in factors.factors[1:])
        return factors._replace(factors=deltas, whole=None if factors.whole is None else factors.whole[own])

    def combine(self, workers: Sequence[WorkerFactors[Array]]) -> Array | None:
        if not any(one.is_present for one in workers):
            return None
        return self._sum([one.factors for one in workers if one.factors], workers, self.shape)

    def multiply(
        self, first: Sequence[WorkerFactors[Array]], others: Sequence[WorkerFactors[Array]], rows: range
    ) -> Array:
        pairs = [(one.factors[0], other.factors[0]) for one, other in zip(first, others, strict=True) if one.factors]
        return self._sum(pairs, others, (len(rows), self.shape[1])).reshape(-1)

    def _sum(
        self, pairs: Sequence[tuple[Array, ...]], workers: Sequence[WorkerFactors[Array]], shape: tuple[int, ...]
    ) -> Array:
        total = np.zeros(shape, self.dtype)
        for activations, deltas in pairs:
            total += deltas.T @ activations
        for one in workers:
            if one.whole is not None:
                total += one.whole
        total /= self.dtype.type(len(workers))
        return total

    def sample(self, gradient: Array) -> bytes:
        return gradient.tobytes()

    def replace(self, gradient: Array) -> None:
        self.layer.gradients[self._kind] = gradient

    def replace_from(self, memory: Array) -> None:
        self.replace(memory.reshape(self.shape))


class NumpyGradients(GradientTable):
    """The gradients of all layers, the last layer's first."""

    def __init__(self, group: Group, layers: Sequence[Linear]) -> None:
        self.slots = [NumpySlot(layer, kind) for layer in reversed(layers) for kind in ("weight", "bias")]
        super().__init__(group, "the parameters", self.slots, [slot.spec for slot in self.slots])

    def find_factor_slot(self, index: int) -> NumpySlot | None:
        slot = self.slots[index]
        return slot if len(slot.shape) == 2 else None


class NumpyProbe:
    """A probe that measures layer times, and counts the rows of the last batch."""

    has_process_group = False

    def __init__(self, group: Group, layers: Sequence[Linear]) -> None:
        self._group = group
        self._layers = layers
        self._left: int | None = None  # passes of the survey
        self._times_s: dict[str, float] = {}
        self._since_s = 0.0
        self.rows = 0

    def find_layers(self, gradients: GradientTable) -> Mapping[str, str]:
        return {}

    def measure_cluster(self, *, again: bool = False) -> Cluster:
        return measure_cluster(self._group, self, again=again)

    def measure_products(self) -> float:
        return measure_shard_products()

    def measure_allreduce(self, size_bytes: int) -> float:
        raise NotImplementedError

    def start_survey(self) -> None:
        self._left = SURVEYED_PASSES

    def start_forward(self) -> bool:
        self._since_s = time.perf_counter()
        return bool(self._left)

    def start_backward(self) -> None:
        self._times_s["forward"] = time.perf_counter() - self._since_s
        self._since_s = time.perf_counter()

    def skip_backward(self) -> None: ...

    def end_backward(self) -> None:
        self._times_s["backward"] = time.perf_counter() - self._since_s
        if self._left:
            self._left -= 1

    def take_profile(self) -> Profile | None:
        if self._left != 0:
            return None
        self._left = None
        share = 1 / len(self._layers)
        return Profile(layers=tuple(self._profile(layer, share) for layer in self._layers))

    def _profile(self, layer: Linear, share: float) -> LayerProfile:
        weight = TensorProfile(name=f"{layer.name}.weight", shape=layer.weight.shape, kind=LayerKind.LINEAR)
        bias = TensorProfile(name=f"{layer.name}.bias", shape=layer.bias.shape)
        forward_s, backward_s = (self._times_s[which] * share for which in ("forward", "backward"))
        return LayerProfile(name=layer.name, tensors=(weight, bias), forward_s=forward_s, backward_s=backward_s)

    def take_rows(self) -> dict[str, float]:
        return {f"{layer.name}.weight": float(self.rows) for layer in self._layers}

    def find_obstacles(self) -> dict[str, str]:
        return {}

    def describe_arithmetic(self) -> str:
        return "numpy"


class NumpyTrainer:
    """A trainer of a multilayer perceptron with mean squared error; the weights start as rank 0's."""

    def __init__(self, group: Group, layers: Sequence[Linear], policy: str | Plan, *, rate: float = 0.1) -> None:
        self.layers = layers
        self.gradients = NumpyGradients(group, layers)
        self.on_use: Callable[[Linear], None] = lambda layer: None  # called when a layer is about to compute
        self._rate = rate
        self._order = UseOrder([slot.name for layer in layers for slot in self._slots_of(layer)])
        self._due: set[int] = set()  # indexes of the tensors whose update waits for their gradient
        self._probe = NumpyProbe(group, layers)
        self.planning = Planning(group, policy, self._probe)
        self._copy_weights(group)
        self.planning.adopt(self.gradients)

    def step(self, inputs: Array, targets: Array) -> None:
        """Train one batch; return before its gradients have arrived."""
        if self.planning.start_forward():
            self.flush()
        outputs = self._forward(inputs)
        self._backward((outputs - targets) * outputs.dtype.type(2 / outputs.size), len(inputs))
        self._due = set(range(len(self.gradients)))

    def flush(self) -> None:
        """Wait for all gradients and make all updates."""
        for index in sorted(self._due):
            self._update(index)

    def _forward(self, values: Array) -> Array:
        for layer in self.layers:
            slots = self._slots_of(layer)
            self._order.use([slot.name for slot in slots])
            for index in [self.gradients.slots.index(slot) for slot in slots]:
                if index in self._due:
                    self._update(index)
            self.on_use(layer)
            values = layer.forward(values)
            if layer is not self.layers[-1]:
                values = np.maximum(values, 0)
        return values

    def _backward(self, deltas: Array, rows: int) -> None:
        self.flush()  # of layers that this forward did not use
        self._probe.rows = rows
        self._order.begin_backward()
        self.gradients.priorities = self._order.prioritise([slot.name for slot in self.gradients.slots])
        self.planning.begin(has_gates=True)
        self.gradients.begin()
        for layer in reversed(self.layers):
            inputs = layer._inputs
            deltas = layer.backward(deltas)
            deltas = deltas * (inputs > 0)
            for slot in self._slots_of(layer):
                self.gradients.send(self.gradients.slots.index(slot))
        self.planning.end()
        self.gradients.send_rest()

    def _update(self, index: int) -> None:
        self._due.discard(index)
        self.gradients.wait_for(index)
        self.gradients.land_one(index)
        slot = self.gradients.slots[index]
        if slot.gradient is not None:
            slot.values -= slot.dtype.type(self._rate) * slot.gradient

    def _slots_of(self, layer: Linear) -> list[NumpySlot]:
        return [slot for slot in self.gradients.slots if slot.layer is layer]

    def _copy_weights(self, group: Group) -> None:
        values = [slot.values.reshape(-1).view(np.uint8) for slot in self.gradients.slots]
        specs = [
            TensorSpec(slot.name, slot.shape, DType.BYTES, array.size)
            for slot, array in zip(self.gradients.slots, values, strict=True)
        ]
        ArrayBroadcast(group, "the weights", specs).run(values)


def make_layers(widths: Sequence[int], *, seed: int = 0) -> list[Linear]:
    """Return the layers of a perceptron with these widths."""
    random = np.random.default_rng(seed)
    shapes = list(zip(widths[1:], widths, strict=False))
    return [
        Linear(f"layer {number}", (random.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32))
        for number, shape in enumerate(shapes)
    ]


def train_alone(layers: Sequence[Linear], batches: Sequence[tuple[Array, Array]], *, rate: float = 0.1) -> None:
    """Train the same model in one process, without undertow."""
    for inputs, targets in batches:
        values = inputs
        for layer in layers:
            values = layer.forward(values)
            if layer is not layers[-1]:
                values = np.maximum(values, 0)
        deltas = (values - targets) * values.dtype.type(2 / values.size)
        for layer in reversed(layers):
            layer_inputs = layer._inputs
            deltas = layer.backward(deltas) * (layer_inputs > 0)
        for layer in layers:
            for values, gradient in zip((layer.weight, layer.bias), layer.gradients.values(), strict=True):
                assert gradient is not None
                values -= np.float32(rate) * gradient
