"""Completion of a syncer in one pass: all its results have arrived.

In: answers, from any thread.  Out: waiting training threads are notified; gates find the members that can be landed.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence

from undertow.engine.client.waiting import Ticket


class Completion(Ticket):
    """The results of some members of a table in one pass: pending, then complete for good.

    A syncer passes `answer` to its contributions as their callback.  A training thread waits for the completion; a gate
    takes it from `arrivals`, to which it is appended once complete.  The contract of `answer`:

    - It is called in the thread that receives the result: the engine thread, or a thread of torch where torch's process
      group computes the sum.  One completion has one such thread; two completions may be answered concurrently.
    - It never waits and takes no lock that the training thread holds: deque appends and pops are atomic.
    - With the last answer, `is_done` first becomes true, then waiting threads are notified, then the completion is
      appended to `arrivals`.
    """

    def __init__(self, answers: int, members: Sequence[int], arrivals: Arrivals | None = None) -> None:
        super().__init__(answers, None if arrivals is None else functools.partial(arrivals.append, self))
        self.members = members


# Completions of one table that no gate has taken yet, in order of arrival.
Arrivals = deque[Completion]
