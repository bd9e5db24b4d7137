"""Named calls begin exactly once, on keys of their own, in whatever order ranks make and prepare them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_group import make_shape
from undertow.engine.coordinator.agreement import Keys
from undertow.engine.coordinator.calls import NamedCallCoordinator
from undertow.engine.coordinator.messages import Begin, Call, Message, Prepare
from undertow.engine.coordinator.terms import Route, Terms
from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import TensorSpec

SIZE = 3


def terms_of(form: int) -> Terms:
    """Some forms of calls; those of the same one can share keys."""
    if form == 0:
        return Terms("allgather", Route.EVERYONE)
    return Terms("allreduce", Route.SLICES, Op.SUM, [TensorSpec("x", (form,), DType.FLOAT32, form)])


@given(st.data(), st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_every_call_begins_once_on_keys_that_no_other_uses(data: st.DataObject, forms: list[int]) -> None:
    made = NamedCallCoordinator(make_shape(SIZE), Keys())
    # What can happen next: a rank makes its next call, a rank learns of keys, a call that has begun ends.
    left = {rank: list(data.draw(st.permutations(range(len(forms))))) for rank in range(SIZE)}
    unprepared: list[tuple[int, int]] = []
    running: dict[int, str] = {}
    begun: list[str] = []

    def hear(told: list[Message]) -> None:
        for message in told:
            if isinstance(message, Prepare):
                unprepared.extend((rank, message.number) for rank in range(SIZE))
            else:
                assert isinstance(message, Begin)
                assert message.number not in running
                running[message.number] = message.name
                begun.append(message.name)

    while any(left.values()) or unprepared or running:
        happenings = [("call", rank) for rank in left if left[rank]]
        happenings += [("learn", index) for index in range(len(unprepared))]
        happenings += [("end", number) for number in running]
        kind, which = data.draw(st.sampled_from(happenings))
        if kind == "call":
            index = left[which].pop()
            hear(made.arrive(which, Call(f"call {index}", terms_of(forms[index]))))
        elif kind == "learn":
            hear(made.prepared(*unprepared.pop(which)))
        else:
            del running[which]
            made.release(which)
    assert sorted(begun) == [f"call {index}" for index in range(len(forms))]
    assert made.missing() == {}
