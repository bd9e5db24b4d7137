"""The plan: which scheme every tensor takes, what that is predicted to cost, and why.

In: what the planner decided.  Out: the same on every rank, and as a file of JSON.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from undertow.core.decoding import Decoder, Format
from undertow.errors import Garbled, PlanError
from undertow.files import write_file
from undertow.plan.checks import check_plan
from undertow.plan.scheme import Scheme

# Raised when an older undertow would misread the file, not when a field is added.
FORMAT = 1


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Of one tensor."""

    tensor: str
    shape: tuple[int, ...]
    scheme: Scheme
    bytes_out: float  # of one host in one step
    push_bytes: float  # what of that is its own, not the answers of its shard
    alone_s: float  # from a gradient to the mean of all, if nothing else were on its way
    break_even: float | None = None  # P*: from so many workers on, factors would send more than a dense gradient
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors are in the order of the forward pass."""

    policy: str
    workers: int
    choices: tuple[Choice, ...]
    step_s: float  # predicted
    compute_s: float
    alone: dict[str, float]  # predicted step in seconds, if one scheme did all that it can do
    format: int = FORMAT

    @property
    def schemes(self) -> dict[str, Scheme]:
        return {choice.tensor: choice.scheme for choice in self.choices}

    @property
    def bytes_out(self) -> float:
        return sum(choice.bytes_out for choice in self.choices)

    def write(self, path: str | os.PathLike[str]) -> None:
        try:
            write_file(path, self.to_json() + b"\n")
        except OSError as error:
            raise PlanError(f"cannot write the plan {os.fspath(path)}: {error.strerror}") from None

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


PLANS: Decoder[Plan] = Decoder(Plan, format=Format.JSON)


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """A plan that was written before; `PlanError` says what is wrong with the file."""
    try:
        plan = PLANS.decode(Path(path).read_bytes())
    except OSError as error:
        raise PlanError(f"cannot read the plan {os.fspath(path)}: {error.strerror}") from None
    except Garbled as error:
        raise PlanError(f"{os.fspath(path)} is no plan of undertow: {error}") from None
    if plan.format != FORMAT:
        raise PlanError(f"the plan {os.fspath(path)} has format {plan.format}, not {FORMAT}: make it again")
    try:
        check_plan(plan)
    except PlanError as error:
        raise PlanError(f"{os.fspath(path)} is no plan of undertow: {error}") from None
    return plan


def check_fits(plan: Plan, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """`PlanError` if a plan that was given is for another model."""
    planned = {choice.tensor: choice.shape for choice in plan.choices}
    for name, shape in shapes.items():
        if name not in planned:
            raise PlanError(f"the plan has no tensor {name!r}: make it again for this model")
        if planned[name] != tuple(shape):
            raise PlanError(
                f"the plan is for a {name!r} of shape {list(planned[name])}, but it is {list(shape)}: make it again "
                "for this model"
            )
