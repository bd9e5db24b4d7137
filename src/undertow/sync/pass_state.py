"""The states of one model's backward passes, and the transitions between them.

In: events, as the frontend observes them.  Out: the state, which decides what happens to each gradient: it stays on
this worker, opens a pass, is sent immediately, or is sent when backward has ended.
A pass is a synchronised backward.  All transitions are in one table; any other is an error.
"""

from __future__ import annotations

import enum
from collections import deque

from undertow.errors import UndertowError


class PassState(enum.Enum):
    """State of one model, which decides what happens to its next gradient.

    In all states but LOCAL and ARMED a backward is followed: its end will be observed.
    """

    # The last forward requested no pass, or its pass is over: a gradient stays on this worker.
    LOCAL = enum.auto()
    # The last forward requested a pass, or every backward is one: a gradient from any backward opens the pass.
    ARMED = enum.auto()
    # The backward has reached an output of a forward that requested a pass: a gradient opens the pass.  If there is
    # none, the state before is restored: LOCAL, because a later forward requested no pass, or ARMED.
    FOLLOWING_LOCAL = enum.auto()
    FOLLOWING_ARMED = enum.auto()
    # A pass is open: each gradient is sent as soon as it is complete.
    OPEN = enum.auto()
    # A pass is open while another wrapper's pass sends some of the same gradients: all are sent at the end.
    OPEN_LATE = enum.auto()


class PassEvent(enum.Enum):
    """Fact about a model's forward and backward passes."""

    FORWARD_SYNCHRONISED = enum.auto()  # a forward that requests a pass has ended
    FORWARD_LOCAL = enum.auto()  # a forward that requests no pass has ended
    ALL_SYNCHRONISED = enum.auto()  # policy: every backward is a pass
    NONE_SYNCHRONISED = enum.auto()  # policy: a backward is a pass only if a forward requests it
    OUTPUT_REACHED = enum.auto()  # a backward has reached an output of a forward that requested a pass
    GRADIENT_FOUND = enum.auto()  # the backward adds to a gradient of this model
    SHARED_GRADIENT_FOUND = enum.auto()  # the same, while an open pass of another wrapper sends that gradient, too
    BACKWARD_OVER = enum.auto()  # the followed backward has ended, or failed before any gradient


TRANSITIONS: dict[PassState, dict[PassEvent, PassState]] = {
    PassState.LOCAL: {
        PassEvent.FORWARD_SYNCHRONISED: PassState.ARMED,
        PassEvent.FORWARD_LOCAL: PassState.LOCAL,
        PassEvent.ALL_SYNCHRONISED: PassState.ARMED,
        PassEvent.NONE_SYNCHRONISED: PassState.LOCAL,
        PassEvent.OUTPUT_REACHED: PassState.FOLLOWING_LOCAL,
    },
    PassState.ARMED: {
        PassEvent.FORWARD_SYNCHRONISED: PassState.ARMED,
        PassEvent.FORWARD_LOCAL: PassState.LOCAL,
        PassEvent.ALL_SYNCHRONISED: PassState.ARMED,
        PassEvent.NONE_SYNCHRONISED: PassState.LOCAL,
        PassEvent.OUTPUT_REACHED: PassState.FOLLOWING_ARMED,
        PassEvent.GRADIENT_FOUND: PassState.OPEN,
        PassEvent.SHARED_GRADIENT_FOUND: PassState.OPEN_LATE,
    },
    # Recomputation inside a followed backward is not a forward: if there is a forward, the backward must have failed.
    PassState.FOLLOWING_LOCAL: {
        PassEvent.FORWARD_SYNCHRONISED: PassState.ARMED,
        PassEvent.FORWARD_LOCAL: PassState.LOCAL,
        PassEvent.ALL_SYNCHRONISED: PassState.FOLLOWING_ARMED,
        PassEvent.NONE_SYNCHRONISED: PassState.FOLLOWING_LOCAL,
        PassEvent.OUTPUT_REACHED: PassState.FOLLOWING_LOCAL,
        PassEvent.GRADIENT_FOUND: PassState.OPEN,
        PassEvent.SHARED_GRADIENT_FOUND: PassState.OPEN_LATE,
        PassEvent.BACKWARD_OVER: PassState.LOCAL,
    },
    PassState.FOLLOWING_ARMED: {
        PassEvent.FORWARD_SYNCHRONISED: PassState.ARMED,
        PassEvent.FORWARD_LOCAL: PassState.LOCAL,
        PassEvent.ALL_SYNCHRONISED: PassState.FOLLOWING_ARMED,
        PassEvent.NONE_SYNCHRONISED: PassState.FOLLOWING_LOCAL,
        PassEvent.OUTPUT_REACHED: PassState.FOLLOWING_ARMED,
        PassEvent.GRADIENT_FOUND: PassState.OPEN,
        PassEvent.SHARED_GRADIENT_FOUND: PassState.OPEN_LATE,
        PassEvent.BACKWARD_OVER: PassState.ARMED,
    },
    # An open pass ends only with its backward: if the backward fails, the pass stays open.
    PassState.OPEN: {
        PassEvent.FORWARD_SYNCHRONISED: PassState.OPEN,
        PassEvent.FORWARD_LOCAL: PassState.OPEN,
        PassEvent.ALL_SYNCHRONISED: PassState.OPEN,
        PassEvent.NONE_SYNCHRONISED: PassState.OPEN,
        PassEvent.OUTPUT_REACHED: PassState.OPEN,
        PassEvent.BACKWARD_OVER: PassState.LOCAL,
    },
    PassState.OPEN_LATE: {
        PassEvent.FORWARD_SYNCHRONISED: PassState.OPEN_LATE,
        PassEvent.FORWARD_LOCAL: PassState.OPEN_LATE,
        PassEvent.ALL_SYNCHRONISED: PassState.OPEN_LATE,
        PassEvent.NONE_SYNCHRONISED: PassState.OPEN_LATE,
        PassEvent.OUTPUT_REACHED: PassState.OPEN_LATE,
        PassEvent.BACKWARD_OVER: PassState.LOCAL,
    },
}
_REMEMBERED = 8  # transitions named in the message about an impossible one


class PassTracker:
    """State of one model's backward passes, and facts about the next one."""

    def __init__(self) -> None:
        self.state = PassState.LOCAL
        self.synchronises_all = False  # policy: every backward is a pass, whatever the forward requested
        self.saw_forward = False  # a forward that requests a pass has begun since the last pass
        self.is_requested = False  # a library above the frontend has requested the next pass
        self._history: deque[tuple[PassState, PassEvent]] = deque(maxlen=_REMEMBERED)

    @property
    def is_open(self) -> bool:
        return self.state is PassState.OPEN or self.state is PassState.OPEN_LATE

    @property
    def is_unforeseen(self) -> bool:
        """Whether no forward announced this pass: it is due to the policy, or was requested."""
        return (self.synchronises_all or self.is_requested) and not self.saw_forward

    def advance(self, event: PassEvent) -> None:
        """Follow the table; raises `UndertowError` if it has no such transition."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise UndertowError(self._describe_impossible(event))
        self._history.append((self.state, event))
        ends = event is PassEvent.BACKWARD_OVER and self.is_open
        self.state = following
        if event is PassEvent.ALL_SYNCHRONISED or event is PassEvent.NONE_SYNCHRONISED:
            self.synchronises_all = event is PassEvent.ALL_SYNCHRONISED
        if ends:
            self.saw_forward = self.is_requested = False
            if self.synchronises_all:
                self.advance(PassEvent.ALL_SYNCHRONISED)

    def _describe_impossible(self, event: PassEvent) -> str:
        history = ", ".join(f"{state.name} + {event.name}" for state, event in self._history) or "nothing"
        return (
            f"{event.name} is impossible while backward passes are {self.state.name}; before that came {history}. This "
            "is a bug in undertow: please report it with this message"
        )
