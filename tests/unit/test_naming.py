"""A message names a few things and counts the rest."""

from __future__ import annotations

import pytest

from undertow.torch.naming import name_some


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "'0'"), (2, "'0' and '1'"), (3, "'0', '1' and '2'"), (5, "'0', '1', '2' and 2 more")],
)
def test_a_few_are_named_and_the_rest_is_counted(count: int, words: str) -> None:
    assert name_some([str(number) for number in range(count)], 3) == words
