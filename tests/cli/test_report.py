"""`undertow report`: the page, the words, the figures, and the mistakes a user makes."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from tests.support.timeline_samples import Job, make_trace, spans, write_trace
from undertow.cli import main

JOB = Job(ranks=3, steps=9, size_bytes=2_000_000)


class Ended(NamedTuple):
    code: object
    out: str
    err: str


Report = Callable[..., Ended]


@pytest.fixture
def report(capfd: pytest.CaptureFixture[str]) -> Report:
    """Run the command in this process, because another one would spend most of its time on imports."""

    def run(*arguments: object) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main(["report", *map(str, arguments)])
        return Ended(ended.value.code, *capfd.readouterr())

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace", make_trace(JOB))


def test_a_page_is_written_and_summed_up_in_words(report: Report, folder: Path) -> None:
    ended = report(folder)
    page = folder / "report.html"
    assert (ended.code, ended.err) == (0, f"undertow: written: {page}\n")
    lines = ended.out.splitlines()
    assert "of the step is compute" in lines[0]
    assert any(line.startswith("advice: ") for line in lines)
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert lines[0] in text
    assert len(json.loads((folder / "trace.json").read_text())) == sum(len(e) for e in make_trace(JOB).values())


def test_the_same_figures_as_json(report: Report, folder: Path) -> None:
    figures = json.loads(report(folder, "--json").out)
    assert (figures["world_size"], figures["counted"], figures["format"]) == (3, [6, 7, 8, 9], 1)
    sent = [event for events in make_trace(JOB).values() for event in spans(events, "wire-out")]
    in_trace = sum(event["args"]["bytes"] for event in sent if event["args"]["step"] in figures["counted"])
    assert sum(row["total_bytes"] for row in figures["tensors"]) == in_trace
    for row in figures["ranks"]:
        assert sum(row["spent_ns"].values()) == row["step_ns"]


def test_a_step_and_a_place_can_be_chosen(report: Report, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "mine.html"
    assert report(folder, "--step", 2, "--out", page).code == 0
    assert '<option value="0">step 2, as requested</option>' in page.read_text()
    assert not (folder / "report.html").exists()


def test_what_is_missing_is_said_and_the_rest_shown(report: Report, folder: Path) -> None:
    (folder / "rank-2.json").unlink()
    ended = report(folder)
    assert ended.code == 0
    assert "missing: Rank 2 of 3: no trace" in ended.out
    assert "Rank 2 of 3: no trace;" in (folder / "report.html").read_text()


def test_a_trace_without_steps_still_gives_a_page(report: Report, tmp_path: Path) -> None:
    traces = {
        rank: [event for event in events if event.get("cat") != "step"] for rank, events in make_trace(JOB).items()
    }
    ended = report(write_trace(tmp_path, traces))
    assert (ended.code, ended.out.count("\n")) == (0, 1)
    assert "No step was recorded" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("foreign", [None, "[]", '{"traceEvents": []}', "not even JSON"])
def test_where_there_is_no_trace_one_line_says_so(report: Report, tmp_path: Path, foreign: str | None) -> None:
    if foreign is not None:
        (tmp_path / "rank-0.json").write_text(foreign)
    ended = report(tmp_path)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        f"undertow report: there is no trace in {tmp_path}: write one with `undertow run --trace {tmp_path} train.py`\n"
    )
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{folder}/nowhere"], "nowhere does not exist: give the folder that `undertow run --trace` wrote to"),
        (["{folder}/rank-0.json"], "rank-0.json is a file: give the folder"),
        (["{folder}", "--out", "{folder}/no/where.html"], "the folder {folder}/no does not exist"),
        (["{folder}", "--out", "{folder}"], "is a folder: give the name of a file"),
        (["{folder}", "--step", "10"], "--step 10 was not recorded by all ranks: choose one of steps 1 to 9"),
        (["{folder}", "--step", "x"], "--step"),
        ([], "Missing argument 'DIR'"),
    ],
)
def test_wrong_usage_is_one_line(report: Report, folder: Path, arguments: list[str], words: str) -> None:
    ended = report(*(argument.format(folder=folder) for argument in arguments))
    assert (ended.code, ended.out) == (2, "")
    assert words.format(folder=folder) in ended.err
    assert ended.err.count("\n") == 1


def test_the_page_is_as_private_as_its_traces_unless_it_has_a_place_of_its_own(report: Report, folder: Path) -> None:
    elsewhere = folder / "page.html"
    assert report(folder).code == report(folder, "--out", elsewhere).code == 0
    assert stat.S_IMODE((folder / "report.html").stat().st_mode) == 0o600
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o666 & ~umask


def test_the_page_can_be_opened(report: Report, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert report(folder, "--open").code == 0
    assert opened == [(folder / "report.html").as_uri()]


def test_a_folder_that_cannot_be_written_to_is_no_traceback(
    report: Report, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *data: bytes) -> NoReturn:
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))

    monkeypatch.setattr("undertow.cli.report.replace_file", refuse)
    ended = report(folder)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == f"undertow report: the page {folder / 'report.html'} cannot be written: Is a directory\n"


def test_traces_that_cannot_be_put_together_still_make_a_page(report: Report, folder: Path) -> None:
    (folder / "trace.json").mkdir()
    ended = report(folder)
    assert ended.code == 0
    assert "could not be merged for viewers: Is a directory" in ended.err
