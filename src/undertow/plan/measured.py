"""What the first steps of a script have shown, as a file of JSON: all that a plan needs of one worker."""

from __future__ import annotations

from pathlib import Path

import msgspec

from undertow.plan.profile import Profile


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    profile: Profile
    flops_per_s: float
    shard_flops_per_s: float
    add_bytes_per_s: float
    has_gates: bool  # the next forward pass starts before all gradients are there

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))


def read_measured(path: Path) -> Measured:
    return msgspec.json.decode(path.read_bytes(), type=Measured)
