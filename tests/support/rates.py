"""A link as fast as a test says, so that nothing depends on how fast this machine is."""

from __future__ import annotations

import itertools
from typing import Any

from undertow.torch.ranks.process_groups import group_for


class SetRate:
    """In place of what the engine measures; always fresh."""

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None
        self._looks = itertools.count(1)

    @property
    def seen(self) -> int:
        return next(self._looks)

    def note(self, now_s: float, received_bytes: int, *, is_waiting: bool) -> None: ...


def set_rate(bytes_per_s: float | None) -> None:
    sender: Any = group_for()._exchange.sender
    if not isinstance(sender.rate, SetRate):
        sender.rate = SetRate()
    sender.rate.bytes_per_s = bytes_per_s
