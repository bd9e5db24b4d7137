"""The one event that says: the results of a syncer are here, in this pass.

In: answers, in whichever thread they come.  Out: training threads wake, gates find the members that can be landed.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence

from undertow.engine.client.waiting import Ticket


class Completion(Ticket):
    """The results of some members of a table in one pass: pending, then complete for good.

    A syncer hands `answer` to its contributions, a training thread waits for the completion, and a gate takes it from
    `arrivals`, where it is once it is complete.  The contract of `answer`:

    - It is called in the thread that brings the result: the engine's, or one of torch's where torch's own process
      group makes the sum.  One completion has one such thread; two completions may be answered by two at once.
    - It never waits and takes no lock of the training thread's: appending to a deque and popping from it are atomic.
    - With the last answer `is_done` becomes true first, then waiting threads wake, then the completion arrives.
    """

    def __init__(self, answers: int, members: Sequence[int], arrivals: Arrivals | None = None) -> None:
        super().__init__(answers, None if arrivals is None else functools.partial(arrivals.append, self))
        self.members = members


# The completions of one table that no gate has taken yet, in the order in which they came.
Arrivals = deque[Completion]
