"""Cores against threads, and open files against workers.

In: the facts, the job's scope.  Out: findings.  Pure.
"""

from __future__ import annotations

from undertow.bounds import read_count
from undertow.doctor.facts import Machine, Scope, Software
from undertow.doctor.findings import Finding, fail, note, ok, warn

# Python and torch themselves, data loaders, the store of torch: with room to spare.
OPEN_FILES_OF_A_PROCESS = 128
# Two pipes with both ends, and a little, while the launcher starts a worker.
OPEN_FILES_PER_WORKER = 6


def judge_machine(facts: Machine, software: Software, scope: Scope) -> list[Finding]:
    return [judge_cores(facts, software, scope), judge_open_files(facts.open_files, scope)]


def judge_cores(facts: Machine, software: Software, scope: Scope) -> Finding:
    usable = min(facts.cores, facts.quota_cores) if facts.quota_cores else float(facts.cores)
    cores = f"{usable:g} core{'' if usable == 1 else 's'}"
    if usable < facts.cores:
        cores += f" (this container's share of {facts.cores})"
    threads, reason = count_threads(facts, software, nproc=scope.nproc)
    if threads is None:
        text = f"OMP_NUM_THREADS={facts.omp_num_threads!r} is not a number of threads"
        return warn("cores", text, "give it a number, or unset it")
    workers = f"{scope.nproc} worker{'' if scope.nproc == 1 else 's'}"
    text = f"{cores} for {workers} with {threads} thread{'' if threads == 1 else 's'} each ({reason})"
    best = max(1, int(usable) // scope.nproc)
    if scope.nproc > usable and not software.torch.devices:
        return warn("cores", f"{text}: they wait for each other", f"start fewer workers on this host: -n {int(usable)}")
    if scope.nproc * threads > usable:
        return warn("cores", f"{text}: threads wait for each other", f"set OMP_NUM_THREADS={best}")
    if scope.world_size > 1 and scope.nproc * threads == usable and not software.torch.devices:
        return note("cores", f"{text}; none is left to undertow's own thread, which is fine for large models")
    return ok("cores", text)


def count_threads(facts: Machine, software: Software, *, nproc: int) -> tuple[int | None, str]:
    """How many each worker computes with, and why; None if nobody can know."""
    if facts.omp_num_threads:
        first = facts.omp_num_threads.partition(",")[0].strip()  # further ones are for nested regions
        count = read_count(first)  # not set by undertow: it may be anything
        return (count, "OMP_NUM_THREADS") if count else (None, "")
    if nproc > 1:
        return 1, "undertow run sets OMP_NUM_THREADS"
    return software.torch.threads or facts.cores, "torch's own choice"


def judge_open_files(limit: int, scope: Scope) -> Finding:
    """A worker has a link to every other one, and the launcher some pipes to each of its own."""
    needed = OPEN_FILES_OF_A_PROCESS + scope.world_size + OPEN_FILES_PER_WORKER * scope.nproc
    if limit < needed:
        text = f"a process may open {limit} files, and {scope.world_size} workers need about {needed}"
        return fail("open files", text, f"allow more before you start: ulimit -n {max(4096, 2 * needed)}")
    return ok("open files", f"{limit} allowed, about {needed} needed")
