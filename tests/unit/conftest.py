"""A group whose answers are late, and a model that waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.slow_group import SlowGroup, Twin


@pytest.fixture
def group() -> Iterator[SlowGroup]:
    from tests.support.slow_group import slow_group  # brings torch along, which most tests do without

    with slow_group() as made:
        yield made


@pytest.fixture
def twin(group: SlowGroup) -> Twin:
    """After a step; nothing of it has come yet."""
    from tests.support.slow_group import Twin
    from tests.support.stepping import BATCH, make_net, momentum

    made = Twin(make_net(), momentum)
    group.deliver_all()
    made.train(BATCH)
    return made
