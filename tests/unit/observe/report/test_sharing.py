"""Output of `undertow share`: every figure of a job, also in a narrow terminal, and the gain in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from undertow.crossover.messages import DeviceStatus, JobStatus, Status
from undertow.launch.job_usage import JobUsage, UsageLog
from undertow.launch.shared_jobs import JobEnd, SharedRunResult
from undertow.observe.report.sharing import describe_gain, make_status, make_summary


def make_job(name: str, **changes: Any) -> JobStatus:
    values: dict[str, Any] = {
        "job": f"id-{name}",
        "name": name,
        "pids": [11, 12],
        "ranks": [2, 3],
        "world_size": 4,
        "weight": 1.0,
        "is_urgent": False,
        "state": "computes",
        "steps": 40,
        "turns": 41,
        "device_s": 3.0,
        "waited_s": 0.5,
        "network_s": 6.0,
        "compute_s": 0.1,
        "exposed_s": 0.1,
        "since_s": 10.0,
        **changes,
    }
    return JobStatus(**values)


def make_device(*jobs: JobStatus, holder: str | None = None, gain: float | None = 2.0) -> DeviceStatus:
    return DeviceStatus(device="cpu", holder=holder, held_s=0.25, jobs=list(jobs), gain=gain)


def make(*devices: DeviceStatus, notices: list[str] | None = None) -> Status:
    return Status(pid=77, lease_s=30.0, up_s=300.0, devices=list(devices), notices=notices or [])


def show(rendered: object, width: int = 160) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(rendered)
    return capture.get()


TWO = (
    make_job("[red]a[/red]", weight=2.0, is_urgent=True, device_s=9.0, ranks=[0, 1, 3]),
    make_job("b", state="waits for its turn", overdue=3, compute_s=0.05, exposed_s=0.012),
)
FACTS = [
    [
        "[red]a[/red]",
        "0-1,3 of 4",
        "11,12",
        "2, urgent",
        "computes",
        "40",
        "9 s (75 %)",
        "0.5 s",
        "6 s",
        "100 + 100",
    ],
    ["b", "2-3 of 4", "1", "waits for its turn, its lease ran out 3 times", "3 s (25 %)", "50.0 + 12.0"],
]


def test_a_row_has_all_figures_of_a_job() -> None:
    shown = show(make_status(make(make_device(*TWO, holder="id-b")), Path("/s")), width=200)
    assert "arbiter: pid 77 at /s, lease 30 s, up for 5 min" in shown
    assert "cpu: b has had the turn for 0.25 s" in shown
    lines = shown.splitlines()
    for facts in FACTS:
        (row,) = [line for line in lines if line.split()[:1] == facts[:1]]
        assert not [fact for fact in facts if fact not in row]
    assert "predicted: together they do 2.00 times as much as one after another" in shown


def test_in_a_narrow_terminal_each_job_is_a_column() -> None:
    jobs = (TWO[0], make_job("b", state="waits for the network"))
    shown = show(make_status(make(make_device(*jobs)), Path("/s")), width=80)
    assert "cpu: no job has the turn" in shown
    assert "…" not in shown
    rows = [line.split("  ") for line in shown.splitlines()]
    named = {row[0].strip(): [cell.strip() for cell in row[1:] if cell.strip()] for row in rows if row[0].strip()}
    assert named["job"] == ["[red]a[/red]", "b"]
    assert named["state"] == ["computes", "waits for the network"]
    assert named["device time"] == ["9 s (75 %)", "3 s (25 %)"]
    assert named["waited for its turn"] == ["0.5 s", "0.5 s"]


def test_the_latest_notices_are_shown() -> None:
    shown = show(make_status(make(notices=[f"notice {number}" for number in range(9)]), Path("/s")))
    assert "no job shares a device" in shown
    assert [line for line in shown.splitlines() if line.startswith("- ")] == [f"- notice {n}" for n in range(4, 9)]


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (make_device(TWO[0], gain=1.0), "only one job"),
        (make_device(TWO[0], make_job("c", compute_s=None, exposed_s=None), gain=None), "unknown until each job"),
        (make_device(*TWO, gain=1.5), "predicted: together they do 1.50 times as much as one after another"),
        (
            make_device(make_job("c", exposed_s=0.0), make_job("d", exposed_s=0.0), gain=1.0),
            "predicted: c and d gain nothing from sharing a device: they hardly wait for the network",
        ),
    ],
)
def test_the_gain_is_described_in_words(device: DeviceStatus, words: str) -> None:
    assert words in describe_gain(device)


def test_the_summary_says_how_each_job_ended_and_which_was_not_seen() -> None:
    figures = JobUsage(steps=40, device_s=6.0, waited_s=1.5, network_s=2.5)
    ends = [
        JobEnd("a", 0, 12.0, figures),
        JobEnd("b", 0, 8.0, JobUsage(steps=10, device_s=2.0, waited_s=0.5, network_s=0.0)),
        JobEnd("c", 7, 1.0, None),
    ]
    shown = show(make_summary(SharedRunResult(ends, [make_device(*TWO)], 7)))
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.split()}
    assert rows["a"] == ["a", "0", "12", "s", "40", "6", "s", "(75", "%)", "1.5", "s", "2.5", "s"]
    assert rows["b"] == ["b", "0", "8", "s", "10", "2", "s", "(25", "%)", "0.5", "s", "0", "s"]
    assert rows["c"] == ["c", "7", "1", "s", "–", "–", "–", "–"]
    assert "cpu: predicted: together they do 2.00 times as much" in shown
    assert "not seen by the arbiter: c (" in shown


BELOW = {100: [101, 11], 200: [201, 21]}


def make_usage_log() -> UsageLog:
    usage_log = UsageLog(list_descendants=lambda pid: BELOW[pid])
    usage_log.launchers += [100, 200]
    return usage_log


def test_the_log_keeps_the_last_figures_of_its_own_jobs() -> None:
    usage_log = make_usage_log()
    mine, stranger = make_job("a", pids=[11], steps=1), make_job("a", job="other", pids=[5], steps=99)
    usage_log.record(make(make_device(mine, stranger)))
    usage_log.record(make(make_device(make_job("a", pids=[11], steps=2, device_s=4.0), stranger)))
    usage_log.record(make(make_device(stranger)))  # without the job, which has left
    seen = usage_log.find(100)
    assert seen == JobUsage(steps=2, device_s=4.0, waited_s=0.5, network_s=6.0)
    assert usage_log.find(200) is None


def test_the_log_adds_up_devices() -> None:
    usage_log = make_usage_log()
    first = make_device(make_job("a", pids=[11], waited_s=1.0))
    second = DeviceStatus(
        device="cuda 1", holder=None, held_s=0.0, jobs=[make_job("a", pids=[101], steps=41, waited_s=2.0)], gain=None
    )
    usage_log.record(make(first, second))
    assert usage_log.find(100) == JobUsage(steps=41, device_s=6.0, waited_s=1.5, network_s=6.0)


def test_the_log_keeps_the_most_informative_status_of_a_device() -> None:
    usage_log = make_usage_log()
    one, two = make_job("a", pids=[11]), make_job("b", pids=[21])
    usage_log.record(make(make_device(one, two, make_job("c", job="c", pids=[6]), gain=None)))
    usage_log.record(make(make_device(one, two, gain=1.4)))
    usage_log.record(make(make_device(one, two, gain=1.6)))
    usage_log.record(make(make_device(one, gain=1.0)))
    assert [device.gain for device in usage_log.devices] == [1.6]
    usage_log.record(
        make(DeviceStatus(device="cuda 7", holder=None, held_s=0.0, jobs=[make_job("c", pids=[6])], gain=None))
    )
    assert len(usage_log.devices) == 1  # no job of ours
