"""Judges this host: Python, torch and the other packages, its cores and its limit of open files.

In: the facts, the job's scope.  Out: findings.  Pure.
"""

from __future__ import annotations

import re

from undertow.bounds import read_count
from undertow.tools.doctor.facts import Machine, Package, Scope, Software, Torch
from undertow.tools.doctor.findings import Finding, fail, note, ok, warn
from undertow.units import format_quantity

# For Python and torch themselves, data loaders and torch's store, with room to spare.
OPEN_FILES_OF_A_PROCESS = 128
# Both ends of two pipes and two more, while the launcher starts a worker.
OPEN_FILES_PER_WORKER = 6
_INSTALL_TORCH = "pip install 'undertow[torch]'"


def judge_machine(facts: Machine, software: Software, scope: Scope) -> list[Finding]:
    return [_judge_cores(facts, software, scope), _judge_open_files(facts.open_files, scope)]


def _judge_cores(facts: Machine, software: Software, scope: Scope) -> Finding:
    usable = min(facts.cores, facts.quota_cores) if facts.quota_cores else float(facts.cores)
    cores = format_quantity(usable, "core")
    if usable < facts.cores:
        cores += f" (this container's share of {facts.cores})"
    threads, reason = _count_threads(facts, software, nproc=scope.nproc)
    if threads is None:
        text = f"OMP_NUM_THREADS={facts.omp_num_threads!r} is not a number of threads"
        return warn("cores", text, "give it a number, or unset it")
    workers = format_quantity(scope.nproc, "worker")
    text = f"{cores} for {workers} with {format_quantity(threads, 'thread')} each ({reason})"
    best = max(1, int(usable) // scope.nproc)
    if scope.nproc > usable and not software.torch.devices:
        cure = f"start fewer workers on this host: -n {int(usable)}"
        return warn("cores", f"{text}: workers wait for each other", cure)
    if scope.nproc * threads > usable:
        return warn("cores", f"{text}: threads wait for each other", f"set OMP_NUM_THREADS={best}")
    if scope.world_size > 1 and scope.nproc * threads == usable and not software.torch.devices:
        return note("cores", f"{text}; none is left for undertow's own thread, which is fine for large models")
    return ok("cores", text)


def _count_threads(facts: Machine, software: Software, *, nproc: int) -> tuple[int | None, str]:
    """Return how many threads each worker computes with, and why; None if OMP_NUM_THREADS is invalid."""
    if facts.omp_num_threads:
        first = facts.omp_num_threads.partition(",")[0].strip()  # further ones are for nested regions
        count = read_count(first)  # undertow did not set it, so it may be anything
        return (count, "OMP_NUM_THREADS") if count else (None, "")
    if nproc > 1:
        return 1, "undertow run sets OMP_NUM_THREADS"
    return software.torch.threads or facts.cores, "torch's own choice"


def _judge_open_files(limit: int, scope: Scope) -> Finding:
    """Judge the limit of open files: a worker has a link to every other worker, a launcher has pipes to each."""
    needed = OPEN_FILES_OF_A_PROCESS + scope.world_size + OPEN_FILES_PER_WORKER * scope.nproc
    if limit < needed:
        text = f"a process may open {limit} files, and {scope.world_size} workers need about {needed}"
        return fail("open files", text, f"allow more before you start: ulimit -n {max(4096, 2 * needed)}")
    return ok("open files", f"{limit} allowed, about {needed} needed")


def judge_software(facts: Software, *, nproc: int) -> list[Finding]:
    return [
        _judge_python(facts.python),
        ok("undertow", facts.undertow),
        *_judge_packages(facts.packages),
        *_judge_torch(facts.torch),
        *_judge_devices(facts, nproc=nproc),
    ]


def is_older(found: str, least: str) -> bool:
    """Return whether a version is older than another; only their leading numbers count."""
    return bool(least) and _numbers(found) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()


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
        return [ok("packages", "undertow is not installed by pip, so its dependencies are not known")]
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
        return [fail("torch", text, f"reinstall it: {_INSTALL_TORCH} --force-reinstall")]
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
