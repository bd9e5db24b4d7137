"""The page of a trace: self-contained, small, all names escaped, with the figures of the trace."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.html_reader import NASTY, Reader
from tests.support.timeline_samples import Job, make_trace, spans, write_trace
from undertow.observe.report.step_page import make_step_page
from undertow.observe.timeline.analysis import Study, study
from undertow.observe.timeline.trace_reader import read_trace

JOB = Job(ranks=3, steps=9, has_plan=True, has_gates=False, size_bytes=2_000_000)
SECTIONS = (
    *("summary", "parts-of-a-step", "timeline-of-a-step", "critical-path", "every-tensor", "links", "every-rank"),
    *("predicted", "advice", "definitions"),
)


def make_study(folder: Path, job: Job) -> Study:
    trace = read_trace(write_trace(folder, make_trace(job)))
    assert trace is not None
    return study(trace)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make_study(tmp_path_factory.mktemp("trace"), JOB)


@pytest.fixture(scope="module")
def page(found: Study) -> str:
    return make_step_page(found)


def test_the_page_has_everything_in_its_order(page: str) -> None:
    assert re.findall(r'<section id="([^"]*)"', page) == list(SECTIONS)
    text = Reader(page).text
    assert "3 workers, train.py, undertow 0.1.0, measured" in text
    assert "simulated" not in text
    for target in re.findall(r'href="#([^"]*)"', page):
        assert f'id="{target}"' in page


def test_the_summary_and_the_advice_are_those_of_the_analysis(page: str, found: Study) -> None:
    text = Reader(page).text
    assert found.analysis.advice
    for sentence in (*found.analysis.summary, *(one.reason for one in found.analysis.advice)):
        assert " ".join(sentence.split()) in text


def read_column(page: str, table: str, place: int) -> list[float]:
    body = re.search(rf'<table id="{table}">.*?<tbody>(.*?)</tbody>', page, re.S)
    assert body is not None
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", body[1], re.S)
    cells = [re.findall(r"<td([^>]*)>", row)[place] for row in rows]
    return [float(re.search(r'data-value="([^"]*)"', cell)[1]) for cell in cells]  # type: ignore[index]


def test_figures_of_the_page_are_sums_of_the_trace(page: str, found: Study) -> None:
    traces, counted = make_trace(JOB), found.analysis.counted
    sent = [event for events in traces.values() for event in spans(events, "wire-out")]
    assert sum(read_column(page, "tensors", 2)) == sum(
        event["args"]["bytes"] for event in sent if event["args"]["step"] in counted
    )
    steps = [event for events in traces.values() for event in spans(events, "step")]
    whole_us = sum(event["dur"] for event in steps if event["args"]["step"] in counted)
    rounds = len(counted) * JOB.ranks
    assert sum(read_column(page, "uses", 1)) == pytest.approx(whole_us * 1000 / rounds, rel=1e-9)
    waits = [event for events in traces.values() for event in spans(events, "wait")]
    waited_us = sum(event["dur"] for event in waits if event["args"]["step"] in counted)
    assert sum(read_column(page, "tensors", 8)) == pytest.approx(waited_us * 1000 / rounds, rel=1e-9)
    path = [link.length_ns for link in found.analysis.path]
    assert sum(read_column(page, "path", 1)) == sum(path)


def test_the_page_loads_nothing_and_runs_only_its_own_script(page: str) -> None:
    reader = Reader(page)
    assert not {"img", "iframe", "object", "embed", "base"} & set(reader.tags)
    for name, value in reader.attributes:
        assert not name.startswith("on")
        assert name != "style"
        assert name not in ("href", "src") or str(value).startswith("#") or value == "data:,"
    assert "@import" not in page
    assert "url(" not in page
    assert "http" not in re.sub(r"http-equiv", "", page)


def test_the_policy_names_the_script_and_the_style_by_their_digests(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}';" in policy[1]


def test_all_text_from_outside_is_escaped(tmp_path: Path) -> None:
    traces = make_trace(replace(JOB, script=NASTY))
    for events in traces.values():
        for event in events:
            args = event["args"]
            for name in {"host", "tensor", "reason"} & args.keys():
                args[name] = NASTY
            if isinstance(args.get("tensors"), list):
                args["tensors"] = [NASTY]
            event["name"] = event["name"] if event["ph"] == "M" else NASTY
    write_trace(tmp_path, make_trace(replace(JOB, ranks=4, started=NASTY)))
    trace = read_trace(write_trace(tmp_path, traces))
    assert trace is not None
    made = make_step_page(study(trace))
    assert "another run" in made
    reader = Reader(made)
    assert reader.tags.count("script") == 2
    assert made.count("<script") == 2
    assert reader.text.count(NASTY) > 10


def test_the_drawn_data_can_be_parsed(page: str, found: Study) -> None:
    (text,) = re.findall(r'<script type="application/json" id="pictures">(.*?)</script>', page, re.S)
    data = json.loads(text)
    assert [picture["step"] for picture in data["pictures"]] == list(found.steps.shown.values())
    assert len(data["pictures"][0]["ranks"]) == 3


def test_a_simulated_trace_is_marked(tmp_path: Path) -> None:
    text = Reader(make_step_page(make_study(tmp_path, Job(source="simulator")))).text
    assert "undertow: steps of train.py simulated" in text
    assert "undertow 0.1.0, simulated" in text


def test_without_a_plan_the_page_says_so(tmp_path: Path) -> None:
    text = Reader(make_step_page(make_study(tmp_path, Job(steps=9)))).text
    assert "There is no plan in the trace, so nothing was predicted." in text
    assert "no plan in the trace: a small model, or recording ended before there was one" in text


def test_one_worker_alone(tmp_path: Path) -> None:
    text = Reader(make_step_page(make_study(tmp_path, Job(ranks=1, steps=9)))).text
    assert "Nothing was sent." in text
    assert "A faster network would gain nothing" in text


def test_missing_parts_are_listed_first(tmp_path: Path) -> None:
    write_trace(tmp_path, make_trace(JOB))
    (tmp_path / "rank-1.json").unlink()
    trace = read_trace(tmp_path)
    assert trace is not None
    made = make_step_page(study(trace))
    assert made.index('id="summary"') < made.index('id="missing"') < made.index('id="parts-of-a-step"')
    assert "Rank 1 of 3: no trace;" in Reader(made).text
    assert "3 workers, traces of 2" in Reader(made).text


def test_a_page_without_any_step_is_complete(tmp_path: Path) -> None:
    traces = {
        rank: [event for event in events if event.get("cat") != "step"] for rank, events in make_trace(JOB).items()
    }
    trace = read_trace(write_trace(tmp_path, traces))
    assert trace is not None
    made = make_step_page(study(trace))
    assert re.findall(r'<section id="([^"]*)"', made) == ["summary", "definitions"]
    assert "No step was recorded completely by all ranks" in Reader(made).text


def test_32_ranks_with_160_tensors_fit_into_3_mb(tmp_path: Path) -> None:
    job = Job(ranks=32, steps=3, layers=160, jitter=0.2, has_plan=True)
    made = make_step_page(make_study(tmp_path, job))
    assert 200_000 < len(made.encode()) < 3_000_000
    assert made.count('<tr><td class="name"') == 160


def test_the_same_trace_makes_the_same_page(page: str, found: Study) -> None:
    assert make_step_page(found) == page
