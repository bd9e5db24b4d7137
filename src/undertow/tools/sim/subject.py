"""Subjects of simulations: models of the zoo, and measured profiles of users' scripts.

In: a name, or a file of `undertow plan --save-profile`.  Out: its profile and its device.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from undertow.bounds import BATCH
from undertow.plan.measured import Measured, read_measured
from undertow.plan.profile import Profile
from undertow.tools.zoo import find_model
from undertow.tools.zoo.model import profile_model

# One core of a host multiplies beside the training: 8 numbers at once, 3 GHz, fused multiply-add.
CORE_FLOPS_PER_S = 5e10


@dataclass(frozen=True, kw_only=True)
class Device:
    """Speeds of a worker that a profile does not have."""

    flops_per_s: float
    shard_flops_per_s: float = CORE_FLOPS_PER_S
    add_bytes_per_s: float = 2e9


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Model that a simulation trains, and the device that trains it."""

    name: str
    title: str
    batch: int  # samples of one worker in one step; 1 where it is not known
    profile: Profile
    device: Device
    has_gates: bool = True  # the script lets the next forward pass start early


def find_subject(name: str, batch: int | None = None) -> Subject:
    """Return a published model on the device of its publication."""
    if batch is not None:
        BATCH.check("--batch", batch)
    model = find_model(name)
    device = Device(flops_per_s=model.flops_per_s)
    title = f"{model.title}, batch {batch or model.batch} per host"
    profile = profile_model(model, batch=batch)
    return Subject(name=name, title=title, batch=batch or model.batch, profile=profile, device=device)


def read_subject(path: str | os.PathLike[str]) -> Subject:
    """Read a profile that `undertow plan --save-profile` has measured."""
    return take_measured(os.fspath(path), read_measured(path))


def take_measured(title: str, measured: Measured) -> Subject:
    """Return a measured model, named after the script or the file that `title` is the path of."""
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
