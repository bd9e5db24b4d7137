"""Virtual world of the fault driver: it logs events, checks claims after each, and limits the length of a run.

In: calls of processes.  Out: the case's event log, or `Broken`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NoReturn

from undertow.tools.faults.event_log import Broken, Case
from undertow.tools.virtual.world import Process, World

MOST_EVENTS = 30_000  # ten times what a run has


class CheckedWorld(World):
    """World that checks claims after every event."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.dice: random.Random = case.dice
        self.log = case.log
        self.checks: list[Callable[[int], None]] = []  # after every event, of the host that it touched

    def note(self, event: str) -> None:
        self.log.note(f"{self.now_s:9.4f} {event}")

    def fail(self, claim: str) -> NoReturn:
        raise Broken(claim, self.log)

    def run_until(self, is_over: Callable[[], bool], *, most_s: float) -> None:
        """Run until the condition holds, or until this time; the caller checks which of the two."""
        for _ in range(MOST_EVENTS):
            if is_over() or self.next_s > most_s:
                return
            self.step()
        self.fail(f"there is no end: {MOST_EVENTS} events, and it is only {self.now_s:.3f} s")

    def _run_in(self, process: Process, call: Callable[[], None]) -> None:
        super()._run_in(process, call)
        for check in self.checks:
            check(process.host)
