"""What is trained in a simulation: a model of the zoo, or what was measured of a user's own script.

In: a name, or a file of `undertow plan --save-profile`.  Out: its profile and its device.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from undertow.bounds import BATCH
from undertow.plan.measured import Measured, read_measured
from undertow.plan.profile import Profile
from undertow.zoo import find_model
from undertow.zoo.profile import profile_model

# Of one core of a host, which multiplies beside the training; with 8 numbers at a time, 3 GHz, fused.
CORE_FLOPS_PER_S = 5e10


@dataclass(frozen=True, kw_only=True)
class Device:
    """What a profile does not say of a worker."""

    flops_per_s: float
    shard_flops_per_s: float = CORE_FLOPS_PER_S
    add_bytes_per_s: float = 2e9


@dataclass(frozen=True, kw_only=True)
class Subject:
    name: str
    title: str
    batch: int  # samples of one worker in one step; 1 where nobody knows
    profile: Profile
    device: Device
    has_gates: bool = True  # the script lets the next forward pass start early


def find_subject(name: str, batch: int | None = None) -> Subject:
    """A published model on the device that it was published with."""
    if batch is not None:
        BATCH.check("--batch", batch)
    model = find_model(name)
    device = Device(flops_per_s=model.flops_per_s)
    title = f"{model.title}, batch {batch or model.batch} per host"
    profile = profile_model(model, batch=batch)
    return Subject(name=name, title=title, batch=batch or model.batch, profile=profile, device=device)


def read_subject(path: str | os.PathLike[str]) -> Subject:
    """As measured by `undertow plan --save-profile`."""
    return take_measured(os.fspath(path), read_measured(path))


def take_measured(title: str, measured: Measured) -> Subject:
    """Named after the file that it was measured of or kept in."""
    device = Device(
        flops_per_s=measured.flops_per_s,
        shard_flops_per_s=measured.shard_flops_per_s,
        add_bytes_per_s=measured.add_bytes_per_s,
    )
    return Subject(
        name=Path(title).stem,
        title=title,
        batch=1,
        profile=measured.profile,
        device=device,
        has_gates=measured.has_gates,
    )
