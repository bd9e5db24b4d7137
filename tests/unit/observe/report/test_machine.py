"""The description of the machine, which must not identify its owner."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import platform
import subprocess
import sys

import pytest

import undertow
from undertow.observe.report import machine
from undertow.observe.report.machine import NOT_INSTALLED, describe_machine, find_cpu_model, find_memory, list_versions

CPUINFO = (
    "processor\t: 0\nmodel name\t: Intel(R)  Xeon(R) CPU @ 2.80GHz\nflags\t\t: fpu\nprocessor\t: 1\nmodel name\t: x\n"
)


def test_the_processor_is_that_of_the_first_core_in_single_spaces() -> None:
    assert find_cpu_model(CPUINFO) == "Intel(R) Xeon(R) CPU @ 2.80GHz"
    assert find_cpu_model("processor\t: 0\nBogoMIPS\t: 50.00\n") == ""


def test_the_memory_is_in_gb() -> None:
    assert find_memory("MemTotal:       24682416 kB\nMemFree:  1 kB\n") == "25.3 GB"
    assert find_memory("") == ""


def test_a_machine_without_these_files_can_be_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "read_text", lambda path: "")
    described = describe_machine()
    assert described["cpu"] == platform.machine()
    assert described["memory"] == "unknown"


def test_cores_are_those_that_this_process_may_use() -> None:
    assert describe_machine()["cores"] == str(len(os.sched_getaffinity(0)))


def test_neither_host_nor_user_nor_path_is_named() -> None:
    described = describe_machine()
    assert list(described) == ["cpu", "cores", "memory", "kernel"]
    text = " ".join(described.values())
    assert platform.node() not in text.split()
    assert f"/{getpass.getuser()}" not in text
    assert os.getcwd() not in text


def test_versions_are_those_that_are_installed() -> None:
    versions = list_versions()
    assert list(versions) == ["undertow", "python", "torch", "numpy"]
    assert versions["undertow"] == undertow.__version__
    assert versions["python"] == platform.python_version()
    assert versions["numpy"] == importlib.metadata.version("numpy")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_PACKAGES", ("no-such-package",))
    assert list_versions()["no-such-package"] == NOT_INSTALLED


def test_reports_import_neither_torch_nor_matplotlib_until_they_draw() -> None:
    code = (
        "import sys, undertow.observe.report.page, undertow.observe.report.compare;"
        "from undertow.observe.report.machine import list_versions;"
        "list_versions(); assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
