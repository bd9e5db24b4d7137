"""Which files of a folder belong together: the ranks of one run, and nothing that another one has left there.

In: ranks as they were read.  Out: those of one run, and in words what was left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from undertow.timeline.model import RankTrace
from undertow.timeline.words import capitalise, name_ranks


def choose_run(found: Sequence[RankTrace]) -> tuple[dict[int, RankTrace], list[str]]:
    """The run with most ranks here; of two with as many, the later one."""
    runs: dict[tuple[str, int, str], list[RankTrace]] = {}
    for trace in found:
        header = trace.header
        runs.setdefault((header.started, header.world_size, header.source), []).append(trace)
    *others, best = sorted(runs, key=lambda run: (len({trace.rank for trace in runs[run]}), _find_end_ns(runs[run])))
    chosen = {trace.rank: trace for trace in runs[best]}
    notes = [_describe(runs[run], runs[best]) for run in others]
    if len(chosen) < len(runs[best]):
        ranks = [trace.rank for trace in runs[best]]
        twice = name_ranks(rank for rank in chosen if ranks.count(rank) > 1)
        notes.append(capitalise(f"{twice}: here twice; one file counts."))
    return dict(sorted(chosen.items())), notes


def _find_end_ns(run: Sequence[RankTrace]) -> int:
    return max((step.end_ns for trace in run for step in trace.steps.values()), default=0)


def _describe(left_out: Sequence[RankTrace], chosen: Sequence[RankTrace]) -> str:
    names = name_ranks(trace.rank for trace in left_out)
    return capitalise(f"{names} of another run ({_name(left_out)}) left out: this page is about {_name(chosen)}.")


def _name(run: Sequence[RankTrace]) -> str:
    header = run[0].header
    count = f"{header.world_size} worker{'' if header.world_size == 1 else 's'}"
    return f"{count}, run {header.started or 'without a name'}"
