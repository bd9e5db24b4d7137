"""Measurements of a script's first steps, as a JSON file with everything that a plan needs to know of one worker."""

from __future__ import annotations

import os

import msgspec

from undertow.decoding import Decoder, Format
from undertow.plan.checks import check_measured
from undertow.plan.documents import FORMAT, read_document, write_document
from undertow.plan.profile import Profile


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Profile of a script, and rates of the host on which it ran."""

    profile: Profile
    flops_per_s: float
    shard_flops_per_s: float
    add_bytes_per_s: float
    has_gates: bool  # whether the next forward pass starts before all gradients have arrived
    format: int = FORMAT

    def write(self, path: str | os.PathLike[str]) -> None:
        write_document(path, "profile", msgspec.json.encode(self))


_files: Decoder[Measured] = Decoder(Measured, format=Format.JSON)


def read_measured(path: str | os.PathLike[str]) -> Measured:
    """Read a profile from a file; raise `PlanError` if it is not valid."""
    return read_document(path, "profile", _files, check_measured)
