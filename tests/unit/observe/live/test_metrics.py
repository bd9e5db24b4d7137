"""Metrics of a snapshot, in the text format of Prometheus."""

from __future__ import annotations

import pytest

from tests.support.live_samples import make_job_state, make_report, make_snapshot, read_metrics
from undertow.observe.live.job_state import JobState
from undertow.observe.live.metrics import write_metrics


def test_metrics_have_every_rank_with_its_labels() -> None:
    samples = read_metrics(write_metrics(make_snapshot(2)))
    label = '{rank="1",host="node1"}'
    assert samples[f"undertow_steps_total{label}"] == 1240
    assert samples[f"undertow_step_rate{label}"] == 8.31
    assert samples[f"undertow_wait_ratio{label}"] == 0.09
    assert samples[f"undertow_wait_seconds_total{label}"] == 13.5
    assert samples[f"undertow_bytes_out_total{label}"] == 14_000_000_000
    assert samples[f"undertow_bytes_in_total{label}"] == 13_000_000_000
    assert samples[f"undertow_link_bytes_per_second{label}"] == 118e6
    assert samples[f"undertow_rank_up{label}"] == 1
    assert samples['undertow_slowest_layer_seconds{rank="1",host="node1",layer="fc6"}'] == pytest.approx(0.0312)


def test_metrics_of_a_rank_that_is_silent_or_has_not_reported() -> None:
    job = make_job_state(1)
    job.expect({0: "a", 1: "b"}, 2)
    samples = read_metrics(write_metrics(job.take_snapshot(200.0)))
    assert samples['undertow_rank_up{rank="0",host="a"}'] == 0
    assert samples['undertow_rank_up{rank="1",host="b"}'] == 0
    assert 'undertow_steps_total{rank="1",host="b"}' not in samples


def test_labels_are_escaped() -> None:
    job = JobState("train.py", now_s=0.0)
    job.expect({0: 'a"b\\c'}, 1)
    job.add_report(make_report(0, layer='x"y'), 0.0)
    text = write_metrics(job.take_snapshot(0.0))
    assert r'undertow_rank_up{rank="0",host="a\"b\\c"} 1' in text
    assert r'layer="x\"y"' in text
    read_metrics(text)
