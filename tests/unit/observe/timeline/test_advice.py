"""Advice is based on figures, and is not given without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.timeline_samples import Job, make_trace, write_trace
from undertow.observe.timeline.advice import Advice, advise
from undertow.observe.timeline.analysis import Analysis, study
from undertow.observe.timeline.forecast import Forecaster
from undertow.observe.timeline.rank_rows import LinkUse, RankRow, find_slow_links, find_stragglers
from undertow.observe.timeline.thread_time import TimeUse
from undertow.observe.timeline.trace_reader import read_trace
from undertow.plan.cluster import Cluster
from undertow.plan.predict import predict
from undertow.plan.profile import LayerProfile, Profile, TensorProfile
from undertow.plan.scheme import Scheme

MS = 1_000_000


def analyse(folder: Path, job: Job) -> Analysis:
    trace = read_trace(write_trace(folder, make_trace(job)))
    assert trace is not None
    return study(trace).analysis


def titles(analysis: Analysis) -> str:
    return "; ".join(advice.title for advice in analysis.advice)


def rank(number: int, *, compute_ms: float = 80, wait_ms: float = 20, rate: float | None = 1e8) -> RankRow:
    spent = dict.fromkeys(TimeUse, 0) | {TimeUse.COMPUTE: round(compute_ms * MS), TimeUse.WAIT: round(wait_ms * MS)}
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
    step_s = predict(PROFILE, CLUSTER, schemes, has_gates=has_gates)
    return Forecaster(PROFILE, CLUSTER, schemes, measured_s=step_s * off, has_gates=has_gates)


def advise_on(forecaster: Forecaster | None = None, *, link_share: float = 0.9, **changes: Any) -> list[Advice]:
    """Advise on a run in which, unless changed, 20 of 100 ms are waiting without a known cause."""
    spent = dict.fromkeys(TimeUse, 0.0) | {TimeUse.COMPUTE: 80.0 * MS, TimeUse.WAIT: 20.0 * MS}
    rows = [msgspec.structs.replace(row, link=use_link(link_share)) for row in changes.pop("ranks", [rank(0), rank(1)])]
    bare = Analysis(
        folder="",
        script="",
        version="",
        is_simulated=False,
        world_size=len(rows),
        complete=(),
        counted=(),
        lengths_ns=(),
        median_step=None,
        median_ns=100.0 * MS,
        step_ns=100.0 * MS,
        spent_ns=spent,
        waited_total_ns={},
        ranks=tuple(rows),
        tensors=(),
        savings={},
        schemes={},
        path=(),
        path_ns={},
        stragglers=(),
        slow_links=(),
        prediction=None,
        has_gates=True,
        clock_error_ns=0,
    )
    return advise(msgspec.structs.replace(bare, **changes), forecaster)


def use_link(share: float) -> LinkUse:
    return LinkUse(out_bytes=0, in_bytes=round(share * 1e7), busy_ns=20 * MS, time_ns=100 * MS, bytes_per_s=1e8)


def only(given: list[Advice]) -> Advice:
    (advice,) = given
    return advice


def test_without_figures_there_is_no_advice() -> None:
    assert only(advise_on()).title == "No advice"


def test_hidden_communication_needs_no_faster_network() -> None:
    spent = dict.fromkeys(TimeUse, 0.0) | {TimeUse.COMPUTE: 99.0 * MS, TimeUse.WAIT: 1.0 * MS}
    advice = only(advise_on(forecast(), spent_ns=spent, has_gates=False))
    assert advice.title == "A faster network would gain nothing"
    assert "1 ms of a step of 100 ms (1 %)" in advice.reason


def test_the_bandwidth_that_hides_everything_is_the_least_one() -> None:
    forecaster = forecast()
    needed = forecaster.find_bandwidth()
    assert forecaster.predict_s(bits_per_s=needed) <= 1.02 * forecaster.floor_s
    assert forecaster.predict_s(bits_per_s=needed / 1.05) > 1.02 * forecaster.floor_s
    advice = only(advise_on(forecaster))
    assert advice.title.startswith("At this batch ")
    assert "would hide" in advice.title
    assert "The links now carry 1.05 Gbit/s" in advice.reason


def test_a_prediction_that_is_far_off_advises_no_bandwidth() -> None:
    advice = only(advise_on(forecast(off=1.5), has_gates=False))
    assert advice.title == "No prediction for other links"
    assert "takes 1.50 times as long as predicted" in advice.reason


def test_waiting_for_all_gradients_leads_to_advice_about_overlap() -> None:
    forecaster = forecast(has_gates=False)
    advice = advise_on(forecaster, has_gates=False)[0]
    assert "--overlap" in advice.title
    now_s, then_s = (forecaster.predict_s(has_gates=gates) for gates in (False, True))
    assert now_s > then_s
    assert f"{then_s * 1e3:.0f} ms instead of {now_s * 1e3:.0f} ms" in advice.reason
    for has_gates in (True, None):
        assert "--overlap" not in str(advise_on(forecaster, has_gates=has_gates))


def test_idle_links_are_not_the_cause_of_waiting() -> None:
    rows = [rank(0), rank(1)]
    idle = [RankRow(**{n: getattr(row, n) for n in row.__struct_fields__} | {"idle_wait_ns": 15 * MS}) for row in rows]
    advice = only(advise_on(ranks=idle, link_share=0.2))
    assert advice.title == "The links are not the cause of the waiting: check the processors"
    assert "During 75 % of the waiting" in advice.reason
    assert "links run at 20 %" in advice.reason
    assert only(advise_on(ranks=idle, link_share=0.7)).title == "No advice"
    assert only(advise_on(ranks=rows, link_share=0.2)).title == "No advice"


def test_a_straggler_is_named_with_its_cost() -> None:
    rows = [rank(0), rank(1), rank(2, compute_ms=100), rank(3)]
    (straggler,) = find_stragglers(rows)
    assert (straggler.rank, straggler.excess_ns) == (2, 20 * MS)
    advice = only(advise_on(ranks=rows, stragglers=(straggler,)))
    assert advice.title == "Check rank 2 on h2: the others wait for it"
    assert "100 ms per step, the others 80 ms (median), so they wait up to 20 ms" in advice.reason


@pytest.mark.parametrize(("compute_ms", "found"), [(88.0, False), (88.1, True)])
def test_a_straggler_is_ten_per_cent_slower(compute_ms: float, found: bool) -> None:
    assert bool(find_stragglers([rank(0), rank(1, compute_ms=compute_ms)])) is found


def test_a_slow_link_is_named() -> None:
    rows = [rank(0), rank(1, rate=5e7), rank(2), rank(3, rate=None)]
    (slow,) = find_slow_links(rows)
    advice = only(advise_on(ranks=rows, slow_links=(slow,)))
    assert advice.title == "Check the link of rank 1 on h1"
    assert "It carries 400 Mbit/s, the others 800 Mbit/s" in advice.reason


def test_turns_of_another_job_are_named() -> None:
    spent = dict.fromkeys(TimeUse, 0.0) | {TimeUse.COMPUTE: 60.0 * MS, TimeUse.WAIT: 20.0 * MS, TimeUse.TURN: 20.0 * MS}
    assert only(advise_on(spent_ns=spent)).title == "Another job uses the device"


# Advice on complete traces


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
    assert "the rate of its link was not measured" in " ".join(analysis.summary)


def test_the_prediction_is_compared_with_the_measurement(tmp_path: Path) -> None:
    analysis = analyse(tmp_path, Job(ranks=3, steps=9, has_plan=True))
    found = analysis.prediction
    assert found is not None
    assert found.measured_step_s == pytest.approx(analysis.median_ns / 1e9)
    assert found.predicted_compute_s == pytest.approx(0.012)
    ratio = found.measured_step_s / found.predicted_step_s
    assert f", {ratio:.2f} times as long." in " ".join(analysis.summary)


@pytest.mark.parametrize(("has_gates", "expected"), [(True, True), (False, False)])
def test_gates_are_found_in_the_trace(tmp_path: Path, has_gates: bool, expected: bool) -> None:
    assert analyse(tmp_path, Job(steps=9, has_gates=has_gates)).has_gates is expected
