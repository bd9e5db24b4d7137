"""The states of a model's passes: every transition, impossible ones, and any sequence of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undertow.errors import UndertowError
from undertow.sync.pass_state import TRANSITIONS, PassEvent, PassState, PassTracker

LOCAL, ARMED, OPEN, OPEN_LATE = PassState.LOCAL, PassState.ARMED, PassState.OPEN, PassState.OPEN_LATE

# One line per state and one column per event, in order; "-" is impossible.
TABLE = """
LOCAL            ARMED      LOCAL      ARMED            LOCAL            FOLLOWING_LOCAL  -     -          -
ARMED            ARMED      LOCAL      ARMED            LOCAL            FOLLOWING_ARMED  OPEN  OPEN_LATE  -
FOLLOWING_LOCAL  ARMED      LOCAL      FOLLOWING_ARMED  FOLLOWING_LOCAL  FOLLOWING_LOCAL  OPEN  OPEN_LATE  LOCAL
FOLLOWING_ARMED  ARMED      LOCAL      FOLLOWING_ARMED  FOLLOWING_LOCAL  FOLLOWING_ARMED  OPEN  OPEN_LATE  ARMED
OPEN             OPEN       OPEN       OPEN             OPEN             OPEN             -     -          LOCAL
OPEN_LATE        OPEN_LATE  OPEN_LATE  OPEN_LATE        OPEN_LATE        OPEN_LATE        -     -          LOCAL
"""
CELLS = [
    (PassState[line[0]], event, None if cell == "-" else PassState[cell])
    for line in map(str.split, TABLE.strip().splitlines())
    for event, cell in zip(PassEvent, line[1:], strict=True)
]


@pytest.mark.parametrize(
    ("before", "event", "after"), CELLS, ids=[f"{before.name}-{event.name}" for before, event, _ in CELLS]
)
def test_every_event_in_every_state(before: PassState, event: PassEvent, after: PassState | None) -> None:
    tracker = PassTracker()
    tracker.state = before
    if after is not None:
        tracker.advance(event)
        assert tracker.state is after
        return
    with pytest.raises(UndertowError, match=f"{event.name} is impossible while backward passes are {before.name}"):
        tracker.advance(event)
    assert tracker.state is before


def test_the_table_has_every_state() -> None:
    assert len(CELLS) == len(PassState) * len(PassEvent)
    assert set(TRANSITIONS) == set(PassState)


def test_the_error_for_an_impossible_event_lists_earlier_ones() -> None:
    tracker = PassTracker()
    for _ in range(20):
        tracker.advance(PassEvent.FORWARD_LOCAL)
    tracker.advance(PassEvent.FORWARD_SYNCHRONISED)
    tracker.advance(PassEvent.OUTPUT_REACHED)
    tracker.advance(PassEvent.GRADIENT_FOUND)
    with pytest.raises(UndertowError) as caught:
        tracker.advance(PassEvent.GRADIENT_FOUND)
    message = str(caught.value)
    assert message.endswith(
        "before that came LOCAL + FORWARD_LOCAL, LOCAL + FORWARD_LOCAL, LOCAL + FORWARD_LOCAL, LOCAL + FORWARD_LOCAL, "
        "LOCAL + FORWARD_LOCAL, LOCAL + FORWARD_SYNCHRONISED, ARMED + OUTPUT_REACHED, FOLLOWING_ARMED + "
        "GRADIENT_FOUND. This is a bug in undertow: please report it with this message"
    )
    with pytest.raises(UndertowError, match="before that came nothing"):
        PassTracker().advance(PassEvent.BACKWARD_OVER)


def run_pass(tracker: PassTracker) -> None:
    tracker.advance(PassEvent.OUTPUT_REACHED)
    tracker.advance(PassEvent.GRADIENT_FOUND)
    tracker.advance(PassEvent.BACKWARD_OVER)


def test_the_policy_holds_from_one_pass_to_the_next() -> None:
    tracker = PassTracker()
    tracker.advance(PassEvent.ALL_SYNCHRONISED)
    tracker.advance(PassEvent.FORWARD_LOCAL)
    assert tracker.state is LOCAL
    for _ in range(2):
        run_pass(tracker)
        assert tracker.state is ARMED
    # The policy at the end of the pass counts.
    tracker.advance(PassEvent.OUTPUT_REACHED)
    tracker.advance(PassEvent.GRADIENT_FOUND)
    tracker.advance(PassEvent.NONE_SYNCHRONISED)
    tracker.advance(PassEvent.BACKWARD_OVER)
    assert tracker.state is LOCAL


@pytest.mark.parametrize("saw_forward", [False, True])
@pytest.mark.parametrize("asks", ["a forward", "the policy", "a request"])
def test_a_pass_is_unforeseen_if_no_forward_announced_it(asks: str, saw_forward: bool) -> None:
    tracker = PassTracker()
    tracker.advance(PassEvent.ALL_SYNCHRONISED if asks == "the policy" else PassEvent.FORWARD_SYNCHRONISED)
    tracker.is_requested = asks == "a request"
    tracker.saw_forward = saw_forward
    assert tracker.is_unforeseen is (asks != "a forward" and not saw_forward)
    run_pass(tracker)
    assert tracker.is_unforeseen is (asks == "the policy")


def test_a_backward_without_gradients_changes_nothing() -> None:
    tracker = PassTracker()
    tracker.saw_forward = True
    for event in (PassEvent.FORWARD_LOCAL, PassEvent.FORWARD_SYNCHRONISED):
        tracker.advance(event)
        before = tracker.state
        tracker.advance(PassEvent.OUTPUT_REACHED)
        tracker.advance(PassEvent.BACKWARD_OVER)
        assert tracker.state is before
        assert tracker.saw_forward


FORWARDS = {PassEvent.FORWARD_SYNCHRONISED: ARMED, PassEvent.FORWARD_LOCAL: LOCAL}


@given(st.lists(st.sampled_from(PassEvent), max_size=40))
def test_any_sequence_of_events(events: list[PassEvent]) -> None:
    """Invariants of any sequence, stated without the table."""
    tracker = PassTracker()
    policy = False
    for event in events:
        before, was_open = tracker.state, tracker.is_open
        try:
            tracker.advance(event)
        except UndertowError:
            assert tracker.state is before
            continue
        if event in (PassEvent.ALL_SYNCHRONISED, PassEvent.NONE_SYNCHRONISED):
            policy = event is PassEvent.ALL_SYNCHRONISED
        if was_open:
            # Only the end of its backward ends a pass; then the policy decides about the next gradient.
            ended = ARMED if policy else LOCAL
            assert tracker.state is (ended if event is PassEvent.BACKWARD_OVER else before)
        elif event in FORWARDS:
            assert tracker.state is FORWARDS[event]
        assert tracker.is_open is (tracker.state in (OPEN, OPEN_LATE))
        # A pass begins only with a gradient.
        found = event in (PassEvent.GRADIENT_FOUND, PassEvent.SHARED_GRADIENT_FOUND)
        assert (tracker.is_open and not was_open) is found
