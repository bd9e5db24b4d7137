"""What all hosts of a job must have alike."""

from __future__ import annotations

from tests.support.doctor_facts import A, B
from undertow.tools.doctor.job_check import make_names_unique


def test_hosts_with_the_same_name_are_distinguished() -> None:
    assert [one.name for one in make_names_unique([A, B, A])] == ["a (host 0)", "b", "a (host 2)"]
