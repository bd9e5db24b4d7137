"""When the ranks tell each other what their links carry, and when they use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undertow.torch.tuning import PASSES, Tuning

if TYPE_CHECKING:
    from tests.unit.slow_group import SlowGroup


def test_rates_are_used_one_pass_after_they_were_told_and_not_before_all_are_there(group: SlowGroup) -> None:
    slow: Any = group
    slow.bytes_per_s = 1e6
    tuning = Tuning(slow)
    for _ in range(PASSES - 1):
        tuning.begin([])
        assert not group.pending
    tuning.begin([])
    assert len(group.pending) == 1
    assert group.waits == 0
    tuning.begin([])
    assert not group.pending
    assert group.waits == 1  # the round was not over: to go on without the others' rates would cut differently
