"""Any order of arrivals, in slices of any size, gives the same bits as a plain loop, and no wait is endless."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.support.slow_group import slow_group
from undertow.tools.faults.gated_training import OPTIMIZERS, Net, Twin, train


@given(
    st.integers(0, 2**32),
    st.sampled_from(sorted(OPTIMIZERS)),
    st.integers(1, 8).map(lambda sixteens: 16 * sixteens),
)
def test_any_order_of_arrival_gives_the_same_bits(seed: int, name: str, slice_bytes: int) -> None:
    pick = random.Random(seed)
    with slow_group(slice_bytes) as group:

        def let_some_come() -> None:
            for contribution in pick.sample(group.pending, pick.randint(0, len(group.pending))):
                group.deliver(contribution)

        twin = Twin(Net(), OPTIMIZERS[name])
        train(twin, pick, let_some_come)
        assert twin.find_difference() is None
