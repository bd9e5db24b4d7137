"""Advice stands on figures, and is silent without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.timeline_samples import Job, make_trace, write_trace
from undertow.plan.cluster import Cluster
from undertow.plan.predict import predict
from undertow.plan.profile import LayerProfile, Profile, TensorProfile
from undertow.plan.scheme import Scheme
from undertow.timeline.advice import Advice, Findings, advise
from undertow.timeline.analysis import Analysis, study
from undertow.timeline.forecast import Forecaster
from undertow.timeline.links import LinkUse
from undertow.timeline.ranks import RankRow, find_slow_links, find_stragglers
from undertow.timeline.reading import read_trace
from undertow.timeline.spending import Spent

MS = 1_000_000


def analyse(folder: Path, job: Job) -> Analysis:
    trace = read_trace(write_trace(folder, make_trace(job)))
    assert trace is not None
    return study(trace).analysis


def titles(analysis: Analysis) -> str:
    return "; ".join(advice.title for advice in analysis.advice)


def rank(number: int, *, compute_ms: float = 80, wait_ms: float = 20, rate: float | None = 1e8) -> RankRow:
    spent = dict.fromkeys(Spent, 0) | {Spent.COMPUTE: round(compute_ms * MS), Spent.WAIT: round(wait_ms * MS)}
    use = LinkUse(out_bytes=1_000_000, in_bytes=2_000_000, busy_ns=20 * MS, time_ns=100 * MS, bytes_per_s=rate)
    return RankRow(rank=number, host=f"h{number}", steps=1, step_ns=100 * MS, spent_ns=spent, idle_wait_ns=0, link=use)


PROFILE = Profile(
    layers=tuple(
        LayerProfile(
            name=f"layer{place}",
            tensors=(TensorProfile(name=f"layer{place}.weight", shape=(1_000_000,)),),
            forward_s=0.01,
            backward_s=0.02,
        )
        for place in range(4)
    )
)
CLUSTER = Cluster(workers=4, bytes_per_s=1.25e8, flops_per_s=1e12, shard_flops_per_s=1e11)


def forecast(*, off: float = 1.0, has_gates: bool = True) -> Forecaster:
    schemes = {tensor.name: Scheme.DENSE for tensor in PROFILE.tensors}
    step_s = predict(PROFILE, CLUSTER, schemes, has_gates=has_gates).step_s
    return Forecaster(PROFILE, CLUSTER, schemes, measured_s=step_s * off, has_gates=has_gates)


def findings(**changes: Any) -> Findings:
    """Twenty of a hundred milliseconds are waiting, and nothing tells why."""
    spent = dict.fromkeys(Spent, 0.0) | {Spent.COMPUTE: 80.0 * MS, Spent.WAIT: 20.0 * MS}
    bare = Findings(
        step_ns=100.0 * MS,
        spent_ns=spent,
        ranks=[rank(0), rank(1)],
        stragglers=[],
        slow_links=[],
        link_share=0.9,
        forecaster=None,
        has_gates=True,
    )
    return replace(bare, **changes)


def only(given: list[Advice]) -> Advice:
    (advice,) = given
    return advice


def test_without_figures_there_is_no_advice() -> None:
    assert only(advise(findings())).title == "No advice"


def test_hidden_communication_needs_no_faster_network() -> None:
    spent = dict.fromkeys(Spent, 0.0) | {Spent.COMPUTE: 99.0 * MS, Spent.WAIT: 1.0 * MS}
    advice = only(advise(findings(spent_ns=spent, forecaster=forecast(), has_gates=False)))
    assert advice.title == "Nothing to gain from a faster network"
    assert "1.00 ms of a step of 100 ms (1 %)" in advice.reason


def test_the_bandwidth_that_hides_everything_is_the_least_one() -> None:
    forecaster = forecast()
    needed = forecaster.find_bandwidth()
    assert forecaster.predict_s(bits_per_s=needed) <= 1.02 * forecaster.floor_s
    assert forecaster.predict_s(bits_per_s=needed / 1.05) > 1.02 * forecaster.floor_s
    advice = only(advise(findings(forecaster=forecaster)))
    assert advice.title.startswith("At this batch ")
    assert "would hide" in advice.title
    assert "The links carry 1.05 Gbit/s now" in advice.reason


def test_a_prediction_that_is_far_off_advises_no_bandwidth() -> None:
    advice = only(advise(findings(forecaster=forecast(off=1.5), has_gates=False)))
    assert advice.title == "No word about other links"
    assert "takes 1.50 times as long as it is predicted to" in advice.reason


def test_who_waits_for_all_gradients_is_told_of_overlap() -> None:
    forecaster = forecast(has_gates=False)
    advice = advise(findings(forecaster=forecaster, has_gates=False))[0]
    assert "--overlap" in advice.title
    now_s, then_s = (forecaster.predict_s(has_gates=gates) for gates in (False, True))
    assert now_s > then_s
    assert f"{then_s * 1e3:.0f} ms instead of {now_s * 1e3:.0f} ms" in advice.reason
    for has_gates in (True, None):
        assert "--overlap" not in str(advise(findings(forecaster=forecaster, has_gates=has_gates)))


def test_idle_links_are_not_what_is_waited_for() -> None:
    rows = [rank(0), rank(1)]
    idle = [RankRow(**{n: getattr(row, n) for n in row.__struct_fields__} | {"idle_wait_ns": 15 * MS}) for row in rows]
    advice = only(advise(findings(ranks=idle, link_share=0.2)))
    assert advice.title == "The links are not what is waited for: look at the processors"
    assert "In 75 % of the waiting" in advice.reason
    assert "links run at 20 %" in advice.reason
    assert only(advise(findings(ranks=idle, link_share=0.7))).title == "No advice"
    assert only(advise(findings(ranks=rows, link_share=0.2))).title == "No advice"


def test_a_straggler_is_named_with_what_it_costs() -> None:
    rows = [rank(0), rank(1), rank(2, compute_ms=100), rank(3)]
    (straggler,) = find_stragglers(rows)
    assert (straggler.rank, straggler.excess_ns) == (2, 20 * MS)
    advice = only(advise(findings(ranks=rows, stragglers=[straggler])))
    assert advice.title == "Look at rank 2 on h2: the others wait for it"
    assert "100 ms in a step, the others 80.0 ms in the middle: everybody waits up to 20.0 ms" in advice.reason


@pytest.mark.parametrize(("compute_ms", "found"), [(88.0, False), (88.1, True)])
def test_a_straggler_is_ten_per_cent_slower(compute_ms: float, found: bool) -> None:
    assert bool(find_stragglers([rank(0), rank(1, compute_ms=compute_ms)])) is found


def test_a_slow_link_is_named() -> None:
    rows = [rank(0), rank(1, rate=5e7), rank(2), rank(3, rate=None)]
    (slow,) = find_slow_links(rows)
    advice = only(advise(findings(ranks=rows, slow_links=[slow])))
    assert advice.title == "Look at the link of rank 1 on h1"
    assert "It carries 400 Mbit/s, those of the others 800 Mbit/s" in advice.reason


def test_turns_of_another_job_are_named() -> None:
    spent = dict.fromkeys(Spent, 0.0) | {Spent.COMPUTE: 60.0 * MS, Spent.WAIT: 20.0 * MS, Spent.TURN: 20.0 * MS}
    assert only(advise(findings(spent_ns=spent))).title == "Another job has the device meanwhile"


# Of whole traces


def test_a_profile_is_made_of_the_trace_where_there_is_no_plan(tmp_path: Path) -> None:
    slow = Job(ranks=3, steps=9, has_gates=False, size_bytes=4_000_000)
    without = analyse(tmp_path / "a", slow)
    assert without.prediction is None
    assert "--overlap" in titles(without)
    assert "At this batch" in titles(without)
    planned = analyse(tmp_path / "b", replace(slow, has_plan=True))
    assert titles(planned).split(";")[0] == titles(without).split(";")[0]


def test_without_a_link_no_bandwidth_is_advised(tmp_path: Path) -> None:
    analysis = analyse(tmp_path, Job(ranks=3, steps=9, has_gates=False, size_bytes=4_000_000, has_link=False))
    assert "Gbit/s" not in titles(analysis)
    assert "how fast its link is was not measured" in " ".join(analysis.summary)


def test_the_plan_is_compared_with_what_happened(tmp_path: Path) -> None:
    analysis = analyse(tmp_path, Job(ranks=3, steps=9, has_plan=True))
    found = analysis.prediction
    assert found is not None
    assert found.measured_step_s == pytest.approx(analysis.median_ns / 1e9)
    assert found.predicted_compute_s == pytest.approx(0.012)
    ratio = found.measured_step_s / found.predicted_step_s
    assert f", {ratio:.2f} times as long." in " ".join(analysis.summary)


@pytest.mark.parametrize(("has_gates", "expected"), [(True, True), (False, False)])
def test_the_door_is_seen_in_the_trace(tmp_path: Path, has_gates: bool, expected: bool) -> None:
    assert analyse(tmp_path, Job(steps=9, has_gates=has_gates)).has_gates is expected
