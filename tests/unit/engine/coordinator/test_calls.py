"""Named calls: matched in any order, begun in the same order on all ranks, refused individually."""

from __future__ import annotations

import time

import pytest

from tests.support.fake_group import make_shape
from undertow.engine.coordinator import calls as coordinator_calls
from undertow.engine.coordinator.agreement import Keys
from undertow.engine.coordinator.calls import KeySets, NamedCallCoordinator
from undertow.engine.coordinator.messages import AllOut, Begin, Call, Decline, Drop, Message, Prepare
from undertow.engine.coordinator.terms import Disagreement, Route, Terms, lay_out
from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import TensorSpec
from undertow.sizing import Sizes


def calls(size: int = 2) -> NamedCallCoordinator:
    return NamedCallCoordinator(make_shape(size), Keys())


def summed(elements: int = 6, *, allows_absent: bool = True, details: str = "") -> Terms:
    tensors = [TensorSpec("x", (elements,), DType.FLOAT32, elements)]
    return Terms("allreduce", Route.SLICES, Op.SUM, tensors, details, allows_absent=allows_absent)


GATHER = Terms("allgather", Route.EVERYONE)


def make(made: NamedCallCoordinator, name: str, terms: Terms, *ranks: int) -> list[Message]:
    return [message for rank in ranks for message in made.arrive(rank, Call(name, terms))]


def first_begun(made: NamedCallCoordinator, name: str, terms: Terms, size: int = 2) -> int:
    """A call with keys of its own, to the point where it begins; returns its set."""
    [prepare] = make(made, name, terms, *range(size))
    assert isinstance(prepare, Prepare)
    told = [message for rank in range(size) for message in made.prepared(rank, prepare.number)]
    assert told == [Begin(name, prepare.number)]
    return prepare.number


def test_a_call_is_prepared_when_the_last_rank_has_made_it() -> None:
    made = calls(3)
    assert make(made, "x", summed(), 2, 0) == []
    [told] = make(made, "x", summed(), 1)
    assert isinstance(told, Prepare)
    assert told.terms == summed()


def test_nobody_begins_before_everybody_knows_the_keys() -> None:
    made = calls()
    [prepare] = make(made, "x", summed(), 0, 1)
    assert isinstance(prepare, Prepare)
    assert made.prepared(1, prepare.number) == []
    assert made.prepared(1, prepare.number) == []
    assert made.prepared(0, prepare.number) == [Begin("x", prepare.number)]
    assert made.prepared(0, prepare.number) == []


def test_names_are_matched_in_any_order() -> None:
    made = calls()
    assert make(made, "x", summed(), 0) + make(made, "y", summed(9), 0) == []
    [second] = make(made, "y", summed(9), 1)
    [first] = make(made, "x", summed(), 1)
    assert isinstance(first, Prepare)
    assert isinstance(second, Prepare)
    assert first.how.first_key != second.how.first_key


def test_a_call_of_the_same_form_uses_the_keys_of_one_that_is_over() -> None:
    made = calls()
    number = first_begun(made, "x", summed())
    made.release(number)
    assert make(made, "y", summed(), 1, 0) == [Begin("y", number)]
    [told] = make(made, "z", summed(), 0, 1)  # under way together: keys of its own
    assert isinstance(told, Prepare)


def test_gathers_of_any_tensors_share_their_keys() -> None:
    made = calls()
    number = first_begun(made, "x", GATHER)
    made.release(number)
    other = Terms("allgather", Route.EVERYONE, tensors=[TensorSpec("y", (-1, 3), DType.BYTES, 0)])
    assert make(made, "y", other, 0, 1) == [Begin("y", number)]


def test_a_difference_ends_that_call_on_all_ranks_and_no_other() -> None:
    made = calls()
    make(made, "y", summed(), 0)
    assert make(made, "x", summed(), 0) == []
    [told] = make(made, "x", summed(7), 1)
    words = "ranks 0 and 1 differ in allreduce 'x': 'x' [6] float32 against 'x' [7] float32"
    assert told == Decline("x", Disagreement(words, "x", "x", (0, 1)))
    [told] = make(made, "y", summed(), 1)
    assert isinstance(told, Prepare)
    assert make(made, "x", summed(), 0, 1) != []  # and the name is free again


def test_a_rank_makes_a_call_once() -> None:
    made = calls()
    assert made.expects(0, "x")
    make(made, "x", summed(), 0)
    assert not made.expects(0, "x")
    assert made.expects(1, "x")
    make(made, "x", summed(), 1)
    assert made.expects(0, "x")


def test_calls_continue_without_a_rank_that_has_run_out() -> None:
    made = calls(3)
    make(made, "x", summed(), 1, 2)
    [told] = made.run_out(0)
    assert isinstance(told, Prepare)
    [told] = make(made, "y", summed(9), 1, 2)
    assert isinstance(told, Prepare)


def test_a_call_that_needs_all_ranks_is_refused_without_one() -> None:
    made = calls(3)
    made.run_out(0)
    [told] = make(made, "x", GATHER, 1, 2)
    words = "allgather 'x' needs all ranks, but rank 0 has run out of input and called join()"
    assert told == Decline("x", Disagreement(words, "x", ranks=(0,)))


def test_the_last_rank_to_run_out_is_named_and_all_continue() -> None:
    made = calls(3)
    assert made.run_out(1) == made.run_out(1) == made.run_out(0) == []
    assert made.run_out(2) == [AllOut(2)]
    assert make(made, "x", summed(), 0, 1) == []


def test_what_was_called_before_the_last_ran_out_comes_first() -> None:
    made = calls()
    make(made, "x", summed(), 0)
    made.run_out(0)
    prepare, out = made.run_out(1)
    assert isinstance(prepare, Prepare)
    assert out == AllOut(1)


def test_who_is_waited_for_is_known() -> None:
    made = calls(3)
    assert made.waits_for(0) is None
    make(made, "x", summed(), 0)
    assert made.waits_for(1) == "x"
    assert made.waits_for(0) is None
    assert made.missing() == {"x": [1, 2]}
    make(made, "x", summed(), 1, 2)
    assert made.waits_for(0) == "x"  # it does not know the keys yet
    made.prepared(0, 0)
    assert made.waits_for(0) is None


def test_a_part_of_the_job_names_its_ranks_as_the_job_does() -> None:
    made = NamedCallCoordinator(make_shape(2, names=(3, 5)), Keys())
    make(made, "x", summed(), 0)
    assert made.missing() == {"x": [5]}
    [told] = make(made, "x", summed(7), 1)
    assert isinstance(told, Decline)
    assert told.mismatch.message.startswith("ranks 3 and 5 differ in allreduce 'x'")
    made.run_out(1)
    [told] = make(made, "y", GATHER, 0)
    assert isinstance(told, Decline)
    assert "but rank 5 has run out of input" in told.mismatch.message


def test_keys_are_never_given_away_twice() -> None:
    keys = Keys()
    made = NamedCallCoordinator(make_shape(3, sizes=Sizes(fixed=1040)), keys)
    each = Terms("alltoall", Route.EACH)
    used: set[int] = set()
    for name, terms in (("a", summed(5000)), ("b", each), ("c", GATHER), ("d", summed(5000))):
        [told] = make(made, name, terms, 0, 1, 2)
        assert isinstance(told, Prepare)
        ours = {item.spec.key for item in lay_out(terms, told.how, make_shape(3))}
        assert ours.isdisjoint(used)
        used |= ours | {keys.take(1)}


def test_the_keys_of_the_oldest_calls_are_dropped_when_too_many_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_calls, "MOST_FREE_KEYS", 2)
    made = calls()
    numbers = [first_begun(made, f"x{elements}", summed(elements)) for elements in (1, 2, 3)]
    for number in (1, 0, 2):
        made.release(numbers[number])
    dropped, prepare = make(made, "y", summed(4), 0, 1)
    assert dropped == Drop(numbers[1])
    assert isinstance(prepare, Prepare)
    assert prepare.number not in numbers
    assert make(made, "x1", summed(1), 0, 1) == [Begin("x1", numbers[0])]
    [anew] = make(made, "x2", summed(2), 0, 1)
    assert isinstance(anew, Prepare)


def test_sets_of_one_form_are_dropped_in_the_order_in_which_they_were_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_calls, "MOST_FREE_KEYS", 2)
    sets = KeySets()
    first, second, third, fourth = (sets.make("form", 1) for _ in range(4))
    other = sets.make("other form", 1)
    for number in (second, first, other, third, fourth):
        sets.give(number)
    assert sets.drop_surplus() == [second, first, other]
    assert [sets.take("form"), sets.take("form"), sets.take("form"), sets.take("other form")] == [
        fourth,
        third,
        None,
        None,
    ]


def test_a_set_is_found_as_quickly_among_many() -> None:
    def time_calls(free: int) -> float:
        sets = KeySets()
        for number in [sets.make("form", 1) for _ in range(free)]:
            sets.give(number)
        since_s = time.process_time()
        for _ in range(3000):
            number = sets.take("form")
            assert number is not None
            sets.give(number)
        return time.process_time() - since_s

    assert time_calls(coordinator_calls.MOST_FREE_KEYS) < 10 * min(time_calls(10) for _ in range(3))


def test_keys_in_use_are_never_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_calls, "MOST_FREE_KEYS", 0)
    made = calls()
    first = first_begun(made, "x", summed(1))
    assert first_begun(made, "y", summed(2)) != first
    made.release(first)
    assert make(made, "z", summed(3), 0, 1)[0] == Drop(first)


def test_a_call_with_more_slices_than_any_has_is_declined_and_the_next_one_begins() -> None:
    made = calls()
    [told] = make(made, "x", summed(elements=10**15), 0, 1)
    assert isinstance(told, Decline)
    assert "bytes of tensors in" in told.mismatch.message
    assert first_begun(made, "y", summed()) == 0


def test_no_call_waits_for_a_server() -> None:
    made = NamedCallCoordinator(make_shape(3, dedicated_servers=1), Keys())
    assert make(made, "x", summed(), 0) == []
    assert (made.lacks(1), made.lacks(2)) == ("x", None)
    assert (made.expects(1, "x"), made.expects(2, "x")) == (True, False)
    assert made.missing() == {"x": [1]}
    [told] = make(made, "x", summed(), 1)
    assert isinstance(told, Prepare)
    assert made.run_out(2) == []
    assert made.run_out(0) == []
    assert made.run_out(1) == [AllOut(1)]
