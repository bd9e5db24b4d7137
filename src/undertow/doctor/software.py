"""Python, torch and the other packages: are they there, new enough, and do they work?

In: the facts.  Out: findings.  Pure.
"""

from __future__ import annotations

import re

from undertow.doctor.facts import Package, Software, Torch
from undertow.doctor.findings import Finding, fail, ok, warn

_INSTALL_TORCH = "pip install 'undertow[torch]'"


def judge_software(facts: Software, *, nproc: int) -> list[Finding]:
    return [
        _judge_python(facts.python),
        ok("undertow", facts.undertow),
        *_judge_packages(facts.packages),
        *_judge_torch(facts.torch),
        *_judge_devices(facts, nproc=nproc),
    ]


def is_older(found: str, least: str) -> bool:
    """Whether a version is below another; only their leading numbers count."""
    return bool(least) and _numbers(found) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()


def _judge_python(python: Package) -> Finding:
    if is_older(python.found, python.least):
        text = f"{python.found} is too old: undertow needs {python.least} or newer"
        return fail("python", text, f"make an environment with Python {python.least} or newer")
    return ok("python", python.found)


def _judge_packages(packages: list[Package]) -> list[Finding]:
    findings = [finding for package in packages if (finding := _find_fault(package, f"pip install {package.name}"))]
    if findings:
        return findings
    if not packages:
        return [ok("packages", "undertow is not installed by pip, so what it needs is not listed")]
    return [ok("packages", ", ".join(f"{package.name} {package.found}" for package in packages))]


def _find_fault(package: Package, cure: str) -> Finding | None:
    if not package.found:
        return fail(package.name, f"{package.name} is not installed", f"install it here: {cure}")
    if is_older(package.found, package.least):
        text = f"{package.name} {package.found} is too old: undertow needs {package.least} or newer"
        return fail(package.name, text, f"install a newer one here: {cure} --upgrade")
    return None


def _judge_torch(torch: Torch) -> list[Finding]:
    if fault := _find_fault(torch.package, _INSTALL_TORCH):
        return [fault]
    if torch.error:
        text = f"torch {torch.package.found} is installed but cannot be used: {torch.error}"
        return [fail("torch", text, f"install it anew: {_INSTALL_TORCH} --force-reinstall")]
    return [ok("torch", f"{torch.package.found} ({torch.build})")]


def _judge_devices(facts: Software, *, nproc: int) -> list[Finding]:
    torch = facts.torch
    if torch.error or not torch.package.found:
        return []
    count = len(torch.devices)
    if not count and facts.has_nvidia_card:
        text = f"this host has an NVIDIA card that torch {torch.package.found} does not see"
        return [warn("devices", text, "install a CUDA build of torch that fits the driver (see: nvidia-smi)")]
    if not count:
        return [ok("devices", "no accelerator: training on CPU cores")]
    names = ", ".join(sorted(set(torch.devices)))
    if nproc > count:
        text = f"{nproc} workers for {count} accelerators ({names}): some would share one"
        return [warn("devices", text, f"start at most {count} on this host: -n {count}")]
    return [ok("devices", f"{count} ({names})")]
