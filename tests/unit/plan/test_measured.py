"""A profile can be written to a file and read again; other files are refused by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from undertow.errors import PlanError
from undertow.plan.measured import Measured, read_measured
from undertow.plan.plan import Plan
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile

WEIGHT = TensorProfile(name="0.weight", shape=(4, 8), kind=LayerKind.LINEAR, rows=8.0, product_s=1e-6)
LAYER = LayerProfile(name="0", tensors=(WEIGHT,), forward_s=0.001, backward_s=0.002)
MEASURED = Measured(
    profile=Profile(layers=(LAYER,)), flops_per_s=1e10, shard_flops_per_s=2e9, add_bytes_per_s=3e9, has_gates=True
)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    MEASURED.write(tmp_path / "x.json")
    assert read_measured(tmp_path / "x.json") == MEASURED
    assert read_measured(str(tmp_path / "x.json")) == MEASURED


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"cannot read the profile .*x\.json: No such file"):
        read_measured(tmp_path / "x.json")
    with pytest.raises(PlanError, match=r"cannot write the profile .*: No such file"):
        MEASURED.write(tmp_path / "nowhere" / "x.json")


PLAN = Plan(policy="auto", workers=2, choices=(), step_s=1.0, compute_s=1.0, alone={}).to_json()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"import torch",
        b"\xff\x00",
        b'{"profile": "\xff"}',
        b"[]",
        b"{}",
        PLAN,
        msgspec.json.encode(MEASURED)[:-5],
        msgspec.json.encode(msgspec.structs.replace(MEASURED, profile=Profile(layers=()))),
    ],
)
def test_a_file_that_is_no_profile(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(PlanError, match=r"x\.json is not a profile of undertow: "):
        read_measured(tmp_path / "x.json")


def test_a_profile_of_another_format(tmp_path: Path) -> None:
    msgspec.structs.replace(MEASURED, format=2).write(tmp_path / "x.json")
    with pytest.raises(PlanError, match=r"x\.json has format 2, not 1: make it again"):
        read_measured(tmp_path / "x.json")
