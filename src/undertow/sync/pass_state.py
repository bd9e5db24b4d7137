"""The states of one model's backward passes, and what leads from one to the next.

In: facts, as a frontend comes to know them.  Out: the state, which decides about every gradient: it stays on this
worker, opens a pass, leaves at once, or leaves when backward has ended.
A pass is a backward that is synchronised.  What a fact leads to is a table; no other transition is possible.
"""

from __future__ import annotations

import enum
from collections import deque

from undertow.errors import UndertowError


class PassState(enum.Enum):
    """State of one model, which decides what becomes of its next gradient.

    A backward is followed, so that its end is noticed, in all states but LOCAL and ARMED.
    """

    # The last forward asked for nothing, or its pass is over: a gradient stays on this worker.
    LOCAL = enum.auto()
    # The last forward asked for a pass, or every backward is one: a gradient opens it, whatever backward it comes from.
    ARMED = enum.auto()
    # The backward has reached an output of a forward that asked for a pass: a gradient opens it.  Without one the
    # backward leaves things as they were: LOCAL, because a later forward asked for nothing, or ARMED.
    FOLLOWING_LOCAL = enum.auto()
    FOLLOWING_ARMED = enum.auto()
    # A pass is open.  A gradient leaves as soon as it is complete.
    OPEN = enum.auto()
    # A pass is open, and so is that of another wrapper, which sends some of the same gradients: all leave at the end.
    OPEN_LATE = enum.auto()


class PassEvent(enum.Enum):
    """Fact about a model's forward and backward passes."""

    FORWARD_SYNCHRONISED = enum.auto()  # a forward has ended that asked for a pass
    FORWARD_LOCAL = enum.auto()  # a forward has ended that asked for none
    ALL_SYNCHRONISED = enum.auto()  # every backward is a pass from now on
    NONE_SYNCHRONISED = enum.auto()  # none is from now on, unless a forward asks for it
    OUTPUT_REACHED = enum.auto()  # by a backward: an output of a forward that asked for a pass
    GRADIENT_FOUND = enum.auto()  # one of this model's that the backward adds to
    SHARED_GRADIENT_FOUND = enum.auto()  # the same, while an open pass of another wrapper sends it too
    BACKWARD_OVER = enum.auto()  # the one that is followed has ended, or broke off before any gradient


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
    # What a followed backward computes again is no forward: after one, the backward must have been broken off.
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
    # An open pass ends with its backward and in no other way: one that is broken off stays open.
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
_REMEMBERED = 8  # transitions, for the message about an impossible one


class PassTracker:
    """State of one model's backward passes, and what else is known of the next one."""

    def __init__(self) -> None:
        self.state = PassState.LOCAL
        self.synchronises_all = False  # the policy: every backward is a pass, whatever forward came before
        self.saw_forward = False  # a forward that asks for a pass has begun since the last pass
        self.is_requested = False  # a library above the frontend has asked for the next pass
        self._story: deque[tuple[PassState, PassEvent]] = deque(maxlen=_REMEMBERED)

    @property
    def is_open(self) -> bool:
        return self.state is PassState.OPEN or self.state is PassState.OPEN_LATE

    @property
    def is_unforeseen(self) -> bool:
        """Whether no forward has announced this pass: the policy wants it, or it was requested."""
        return (self.synchronises_all or self.is_requested) and not self.saw_forward

    def advance(self, event: PassEvent) -> None:
        """Follow the table; raises `UndertowError` if it has no such transition."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise UndertowError(self._tell(event))
        self._story.append((self.state, event))
        ends = event is PassEvent.BACKWARD_OVER and self.is_open
        self.state = following
        if event is PassEvent.ALL_SYNCHRONISED or event is PassEvent.NONE_SYNCHRONISED:
            self.synchronises_all = event is PassEvent.ALL_SYNCHRONISED
        if ends:
            self.saw_forward = self.is_requested = False
            if self.synchronises_all:
                self.advance(PassEvent.ALL_SYNCHRONISED)

    def _tell(self, event: PassEvent) -> str:
        story = ", ".join(f"{state.name} + {event.name}" for state, event in self._story) or "nothing"
        return (
            f"backward passes were {self.state.name}, where {event.name} is impossible; before that came {story}. This "
            "is a bug of undertow: report it with this message"
        )
