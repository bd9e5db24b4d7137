"""The order of jobs that is the same on all hosts: what a worker says of its job when it asks for the turn.

In: what the job has had after some step, as counted on the first worker's host.
Out: its place for a step, the same on every host that asks for it.
A step's count takes until the end of the next one to reach all hosts, so the place for a step is
made of the count of two steps before, and of what a step costs.
"""

from __future__ import annotations

from undertow.crossover.turns import Place

LAG = 2
KEPT = 4


class Standings:
    """Of one job, in one worker."""

    def __init__(self) -> None:
        self._counts: dict[int, Place] = {}

    def hear(self, step: int, place: Place) -> None:
        """After this step the job has had so much."""
        self._counts[step] = place
        for old in sorted(self._counts)[:-KEPT]:
            del self._counts[old]

    def place_for(self, step: int) -> Place | None:
        """For a step that begins now; None as long as nobody has counted."""
        known = [counted for counted in self._counts if counted <= step - LAG]
        if not known:
            return None
        counted = max(known)
        place = self._counts[counted]
        return Place(place.virtual_s + place.cost_s * (step - 1 - counted), place.cost_s)

    def forget(self) -> None:
        """The count begins anew, at another arbiter."""
        self._counts.clear()
