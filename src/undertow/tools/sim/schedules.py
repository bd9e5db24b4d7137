"""Systems that can be simulated, each a schedule over the same virtual network.

In: a name.  Out: which mechanisms are on.  All but `ddp` run undertow's own engine.  They differ in when gradients
leave, in their order, slices and schemes, and in what the next forward pass waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from undertow.errors import ConfigError
from undertow.plan.planner import AUTO, POSEIDON
from undertow.plan.scheme import Scheme
from undertow.settings import Priority
from undertow.sizing import UNSLICED_BYTES, Sizes

UNLIMITED_BYTES = 1 << 60
_WITHOUT = "-no-"
# Cost of a message in engines in C++: an estimate.
NATIVE_MESSAGE_S = 0.00002


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """System that can be simulated: which mechanisms are on."""

    name: str
    about: str
    policy: str = Scheme.DENSE.value
    sizes: Sizes = field(default_factory=Sizes)
    credit_bytes: int = UNLIMITED_BYTES  # 0: chosen as undertow does
    priority: Priority = Priority.OFF
    is_wait_free: bool = True  # gradients leave while backward still computes
    has_gates: bool = False  # the next forward pass starts before all gradients have arrived
    whole_below: int = 0  # elements: smaller tensors stay whole, others are split among all servers; 0: by `sizes`
    message_s: float | None = None  # cost of a message in another engine than ours
    is_ring: bool = False  # torch's buckets and ring all-reduce instead of the engine


_UNDERTOW = Schedule(
    name="undertow",
    about="undertow with everything on: its own planner, slices, priorities and gates",
    policy=AUTO,
    credit_bytes=0,
    priority=Priority.BOTH,
    has_gates=True,
)
_PLAIN = replace(
    _UNDERTOW,
    name="plain",
    about="undertow without overlap: gradients leave after backward, all at once, and the next step waits for all",
    is_wait_free=False,
    has_gates=False,
    priority=Priority.OFF,
)
_BLOCK = Sizes(fixed=2 << 20)  # Poseidon's key-value pairs (ATC 2017)

_native = partial(Schedule, message_s=NATIVE_MESSAGE_S)

SCHEDULES: Mapping[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        _native(
            name="ps",
            about="a plain parameter server: all gradients after backward, a barrier before the next step",
            sizes=_BLOCK,
            is_wait_free=False,
        ),
        _native(
            name="ps-whole",
            about="the same, with every tensor as a whole on one server",
            sizes=Sizes(fixed=UNSLICED_BYTES),
            is_wait_free=False,
        ),
        _native(
            name="wfbp",
            about="a parameter server to which gradients leave while backward still computes",
            sizes=_BLOCK,
        ),
        _native(
            name="hybrid",
            about="Poseidon: the same, and fully connected layers send factors where that is less",
            sizes=_BLOCK,
            policy=POSEIDON,
        ),
        Schedule(
            name="ddp", about="torch DDP: buckets of 25 MiB, ring all-reduce, overlap with backward", is_ring=True
        ),
        _native(
            name="fifo",
            about="P3's baseline, MXNet's store: tensors in the order in which they come, large ones on all servers",
            whole_below=1_000_000,  # MXNET_KVSTORE_BIGARRAY_BOUND
            has_gates=True,
        ),
        _native(
            name="slicing",
            about="P3 without priorities: slices of 50,000 parameters in the order in which they come",
            sizes=Sizes(fixed=200_000),
            has_gates=True,
        ),
        _native(
            name="p3",
            about="P3: slices of 50,000 parameters, the first layer first, every layer waits for its own",
            sizes=Sizes(fixed=200_000),
            credit_bytes=0,
            priority=Priority.PUSH,
            has_gates=True,
        ),
        _UNDERTOW,
        _PLAIN,
    )
}

_MECHANISMS = {
    "wait-free": {"is_wait_free": False},
    "slicing": {"sizes": Sizes(fixed=UNSLICED_BYTES)},
    "gate": {"has_gates": False},
    "priority": {"priority": Priority.OFF},
    "two-way": {"priority": Priority.PUSH},
    "hybrid": {"policy": Scheme.DENSE.value},
}


def find_schedule(name: str) -> Schedule:
    """Return the schedule of this name; `undertow-no-slicing` and the like are undertow with a mechanism turned off."""
    if name in SCHEDULES:
        return SCHEDULES[name]
    base, *without = name.split(_WITHOUT)
    if base != _UNDERTOW.name or not without or not set(without) <= set(_MECHANISMS):
        raise ConfigError(f"unknown system {name!r}; known: {', '.join(list_schedules())}")
    schedule = replace(_UNDERTOW, name=name, about=f"undertow without {' and '.join(without)}")
    for mechanism in without:
        schedule = replace(schedule, **_MECHANISMS[mechanism])  # type: ignore[arg-type]
    return schedule


def list_schedules() -> list[str]:
    return [*SCHEDULES, *(f"{_UNDERTOW.name}{_WITHOUT}{mechanism}" for mechanism in _MECHANISMS)]
