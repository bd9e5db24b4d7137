"""The plan: the scheme of every tensor, its predicted cost and the reason.

In: decisions of the planner.  Out: a frozen document, the same on every rank, and its JSON file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from undertow.decoding import Decoder, Format
from undertow.errors import PlanError
from undertow.plan.checks import check_plan
from undertow.plan.documents import FORMAT, read_document, write_document
from undertow.plan.scheme import Scheme


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Scheme of one tensor, with its predicted cost and the reason."""

    tensor: str
    shape: tuple[int, ...]
    scheme: Scheme
    bytes_out: float  # sent by one host in one step
    push_bytes: float  # the part of these that are contributions; the others are answers of its server
    alone_s: float  # time from the gradient to the mean, if nothing else used the links
    break_even: float | None = None  # P*: with more workers than this, factors cost more bytes than the dense gradient
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Schemes of all tensors of a model, in the order of the forward pass."""

    policy: str
    workers: int
    servers: int = 0  # 0, which older files have, becomes the number of workers
    choices: tuple[Choice, ...]
    step_s: float  # predicted
    compute_s: float
    alone: dict[str, float]  # for each scheme, the predicted step in seconds if it were used wherever possible
    format: int = FORMAT

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "servers", self.servers or self.workers)

    @property
    def schemes(self) -> dict[str, Scheme]:
        return {choice.tensor: choice.scheme for choice in self.choices}

    @property
    def other_schemes(self) -> dict[str, Scheme]:
        """The schemes of tensors that are not dense."""
        return {name: scheme for name, scheme in self.schemes.items() if scheme is not Scheme.DENSE}

    @property
    def bytes_out(self) -> float:
        return sum(choice.bytes_out for choice in self.choices)

    def write(self, path: str | os.PathLike[str]) -> None:
        write_document(path, "plan", self.to_json())

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


PLANS: Decoder[Plan] = Decoder(Plan, format=Format.JSON)


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan from a file; raise `PlanError` if it is not valid."""
    return read_document(path, "plan", PLANS, check_plan)


def check_fits(plan: Plan, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `PlanError` if a plan was made for another model."""
    planned = {choice.tensor: choice.shape for choice in plan.choices}
    for name, shape in shapes.items():
        if name not in planned:
            raise PlanError(f"the plan has no tensor {name!r}: make it again for this model")
        if planned[name] != tuple(shape):
            raise PlanError(
                f"the plan has {name!r} of shape {list(planned[name])}, but the model has it of shape {list(shape)}: "
                "make the plan again for this model"
            )
