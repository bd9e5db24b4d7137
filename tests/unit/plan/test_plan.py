"""A plan as a file, and whether it fits a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from undertow.errors import PlanError
from undertow.plan.plan import Choice, Plan, check_fits, read_plan
from undertow.plan.scheme import Scheme


def choose(tensor: str, shape: tuple[int, ...], scheme: Scheme, bytes_out: float) -> Choice:
    return Choice(
        tensor=tensor, shape=shape, scheme=scheme, bytes_out=bytes_out, push_bytes=1.0, alone_s=0.1, reason="small"
    )


CHOICES = (choose("fc8.weight", (1000, 4096), Scheme.FACTORS, 30.0), choose("fc8.bias", (1000,), Scheme.DENSE, 12.0))
PLAN = Plan(policy="auto", workers=4, choices=CHOICES, step_s=0.5, compute_s=0.25, alone={"dense": 1.0})


def test_without_a_number_of_servers_there_are_as_many_as_workers() -> None:
    assert PLAN.servers == 4
    assert Plan(policy="auto", workers=4, servers=2, choices=(), step_s=1.0, compute_s=1.0, alone={}).servers == 2


def test_tensors_without_another_scheme_are_dense() -> None:
    assert PLAN.schemes == {"fc8.weight": Scheme.FACTORS, "fc8.bias": Scheme.DENSE}
    assert PLAN.other_schemes == {"fc8.weight": Scheme.FACTORS}
    assert PLAN.bytes_out == 42.0


def test_a_plan_is_written_and_read_again(tmp_path: Path) -> None:
    PLAN.write(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == PLAN


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{}", "is not a plan of undertow"),
        (b"nonsense", "is not a plan of undertow"),
        (b'{"policy": "\xff"}', "is not a plan of undertow: it is not text in UTF-8"),
        (b'{"?": ' + b"[" * 100_000, "is not a plan of undertow: it is nested too deeply"),
        (None, "cannot read the plan"),
    ],
    ids=["empty", "nonsense", "not UTF-8", "nested", "absent"],
)
def test_a_file_that_is_no_plan_is_refused_in_words(tmp_path: Path, text: bytes | None, words: str) -> None:
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(PlanError, match=words):
        read_plan(path)


def test_a_plan_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(PLAN.to_json().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(PlanError, match="has format 2, not 1"):
        read_plan(tmp_path / "plan.json")


def test_an_impossible_plan_in_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(PLAN.to_json().replace(b'"workers": 4', b'"workers": 0'))
    with pytest.raises(PlanError, match="is not a plan of undertow: workers is 0, which is not possible"):
        read_plan(tmp_path / "plan.json")


def test_a_plan_for_another_model_is_refused_with_the_tensor() -> None:
    shapes = {choice.tensor: choice.shape for choice in CHOICES}
    check_fits(PLAN, shapes)
    with pytest.raises(PlanError, match=r"of shape \[1000, 4096\], but the model has it of shape \[10, 4096\]"):
        check_fits(PLAN, {**shapes, "fc8.weight": (10, 4096)})
    check_fits(PLAN, {"fc8.bias": (1000,)})  # a part of the model may be planned alone
    with pytest.raises(PlanError, match=r"no tensor 'fc9\.weight'"):
        check_fits(PLAN, {**shapes, "fc9.weight": (1,)})
