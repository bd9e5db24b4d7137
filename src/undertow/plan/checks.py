"""Checks of profiles and plans that come from files, before anything is computed with them.

In: a decoded `Profile` or `Plan`.  Out: nothing, or `PlanError` with the field and the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from undertow.bounds import RATE, WORLD_SIZE, Bounds, show
from undertow.errors import ConfigError, PlanError
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile

if TYPE_CHECKING:
    from undertow.plan.measured import Measured
    from undertow.plan.plan import Plan

_TIME_S = Bounds(least=0, most=1e6, unit="seconds", is_whole=False)
_STEP_S = Bounds(least=0, most=1e12, unit="seconds", is_whole=False)
_LENGTH = Bounds(least=0, most=1 << 40)
_ELEMENTS = Bounds(least=0, most=1 << 36)
_PARAMETERS = Bounds(least=0, most=1 << 40)  # more than any model has; planning for more would take hours
_ITEM_BYTES = Bounds(least=1, most=16, unit="bytes")
_ROWS = Bounds(least=0, most=1e12, is_whole=False)
_BYTES = Bounds(least=0, most=1e18, unit="bytes", is_whole=False)
MOST_TENSORS = 1_000_000
SHORTEST_STEP_S = 1e-9
MATRIX = 2  # number of dimensions


def check_measured(measured: Measured) -> None:
    """Raise `PlanError` if these measurements are impossible."""
    for name in ("flops_per_s", "shard_flops_per_s", "add_bytes_per_s"):
        _check(name, getattr(measured, name), RATE)
    check_profile(measured.profile)
    if not measured.profile.compute_s > 0:
        raise PlanError("its layers take no time")


def check_profile(profile: Profile) -> None:
    """Raise `PlanError` if no model can have this profile."""
    for layer in profile.layers:
        _check_layer(layer)
    _check("the number of parameters", sum(math.prod(tensor.shape) for tensor in profile.tensors), _PARAMETERS)
    _check_names([tensor.name for tensor in profile.tensors])


def check_plan(plan: Plan) -> None:
    """Raise `PlanError` if no planner can have made this plan."""
    _check("workers", plan.workers, WORLD_SIZE)
    _check("servers", plan.servers, WORLD_SIZE)
    for name, value in (("step_s", plan.step_s), ("compute_s", plan.compute_s), *plan.alone.items()):
        _check(name, value, _STEP_S)
    for name, value in (("step_s", plan.step_s), ("compute_s", plan.compute_s)):
        if value < SHORTEST_STEP_S:
            raise PlanError(f"{name} is {value:g}: every step takes some time")
    for choice in plan.choices:
        _check_shape(choice.tensor, choice.shape)
        _check(f"bytes_out of {choice.tensor!r}", choice.bytes_out, _BYTES)
        _check(f"push_bytes of {choice.tensor!r}", choice.push_bytes, _BYTES)
        _check(f"alone_s of {choice.tensor!r}", choice.alone_s, _STEP_S)
        if choice.break_even is not None:
            _check(f"break_even of {choice.tensor!r}", choice.break_even, _ROWS)
    _check_names([choice.tensor for choice in plan.choices])


def _check_layer(layer: LayerProfile) -> None:
    _check(f"forward_s of {layer.name!r}", layer.forward_s, _TIME_S)
    _check(f"backward_s of {layer.name!r}", layer.backward_s, _TIME_S)
    for tensor in layer.tensors:
        _check_tensor(tensor)


def _check_tensor(tensor: TensorProfile) -> None:
    _check_shape(tensor.name, tensor.shape)
    if (
        tensor.rows
        and tensor.kind in (LayerKind.LINEAR, LayerKind.EMBEDDING)
        and (len(tensor.shape) != MATRIX or 0 in tensor.shape)
    ):
        raise PlanError(f"{tensor.name!r} has rows but is not a matrix: its shape is {list(tensor.shape)}")
    _check(f"rows of {tensor.name!r}", tensor.rows, _ROWS)
    _check(f"itemsize of {tensor.name!r}", tensor.itemsize, _ITEM_BYTES)
    _check(f"row_itemsize of {tensor.name!r}", tensor.row_itemsize, _ITEM_BYTES)
    if tensor.product_s is not None:
        _check(f"product_s of {tensor.name!r}", tensor.product_s, _TIME_S)


def _check_shape(name: str, shape: Sequence[int]) -> None:
    for length in shape:
        _check(f"a length of {name!r}", length, _LENGTH)
    _check(f"the number of elements of {name!r}", math.prod(shape), _ELEMENTS)


def _check_names(names: Sequence[str]) -> None:
    if len(names) > MOST_TENSORS:
        raise PlanError(f"it has {len(names)} tensors, but at most {MOST_TENSORS} are possible")
    if twins := [name for name, count in Counter(names).items() if count > 1]:
        raise PlanError(f"it has the tensor {twins[0]!r} twice")


def _check(name: str, value: float, limits: Bounds) -> None:
    try:
        limits.check_range(f"{name} is {show(value)}, which", value)
    except ConfigError as error:
        raise PlanError(str(error)) from None
