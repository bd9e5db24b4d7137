"""Helpers to run the doctor quickly, and on several emulated hosts at the same time."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from tests.support.command import Cli
from undertow.tools.lab.network import Host

# A fake torch for the child process that imports it: the real one takes seconds, and a core.
STAND_IN = """
import sys, types
if any(word.endswith("torch_probe.py") for word in sys.orig_argv):
    torch, undertow_torch = types.ModuleType("torch"), types.ModuleType("undertow.torch")
    torch.cuda = types.SimpleNamespace(is_available=lambda: False)
    torch.version = types.SimpleNamespace(cuda=None, hip=None)
    torch.get_num_threads = lambda: 1
    sys.modules.update({"torch": torch, "undertow.torch": undertow_torch})
"""


def spare_torch(cli: Cli, code: str = STAND_IN) -> None:
    """Let every Python that the command starts run this code first."""
    folder = cli.folder / "site"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    cli.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), cli.environment.get("PYTHONPATH")]))


def start_doctor(
    cli: Cli, host: Host, *arguments: object, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    with host.entered():
        return cli.start("doctor", *arguments, env={**cli.environment, **(variables or {})})


def start_doctors(cli: Cli, hosts: Sequence[Host], *arguments: object) -> list[subprocess.CompletedProcess[str]]:
    """Run the same command on each host, the last one first: the order must not matter."""
    started = [start_doctor(cli, host, *arguments) for host in reversed(hosts)]
    return finish_all(cli, *reversed(started))


def finish_all(cli: Cli, *processes: subprocess.Popen[str]) -> list[subprocess.CompletedProcess[str]]:
    return [cli.finish(process) for process in processes]


def lines_of(result: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return level and text of the last finding about each subject, which is the worst."""
    found = re.findall(r"^(ok|note|warning|failure) +(\S+(?: \S+)*)  +(.*)$", result.stdout, re.MULTILINE)
    return {subject: f"{level} {text}" for level, subject, text in found}
