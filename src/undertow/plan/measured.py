"""What the first steps of a script have shown, as a file of JSON: all that a plan needs of one worker."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from undertow.core.decoding import Decoder, Format
from undertow.errors import Garbled, PlanError
from undertow.files import write_file
from undertow.plan.checks import check_measured
from undertow.plan.profile import Profile

# Raised when an older undertow would misread the file, not when a field is added.
FORMAT = 1


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    profile: Profile
    flops_per_s: float
    shard_flops_per_s: float
    add_bytes_per_s: float
    has_gates: bool  # the next forward pass starts before all gradients are there
    format: int = FORMAT

    def write(self, path: str | os.PathLike[str]) -> None:
        try:
            write_file(path, msgspec.json.encode(self) + b"\n")
        except OSError as error:
            raise PlanError(f"cannot write the profile {os.fspath(path)}: {error.strerror}") from None


_files: Decoder[Measured] = Decoder(Measured, format=Format.JSON)


def read_measured(path: str | os.PathLike[str]) -> Measured:
    """A profile that was written before; `PlanError` says what is wrong with the file."""
    name = os.fspath(path)
    try:
        measured = _files.decode(Path(path).read_bytes())
    except OSError as error:
        raise PlanError(f"cannot read the profile {name}: {error.strerror}") from None
    except Garbled as error:
        raise PlanError(f"{name} is no profile of undertow: {error}") from None
    if measured.format != FORMAT:
        raise PlanError(f"the profile {name} has format {measured.format}, not {FORMAT}: measure it again")
    try:
        check_measured(measured)
    except PlanError as error:
        raise PlanError(f"{name} is no profile of undertow: {error}") from None
    return measured
