"""What a group is made of; the same on all its ranks but for `rank`."""

from __future__ import annotations

from dataclasses import dataclass

from undertow.plan.slicing import DEFAULT_SLICE_BYTES
from undertow.settings import Priority


@dataclass(frozen=True, kw_only=True)
class Shape:
    rank: int
    hosts: list[str]
    job: int
    slice_bytes: int  # 0: chosen for each model, `DEFAULT_SLICE_BYTES` at most
    credit_bytes: int
    silence_timeout_s: float
    stall_timeout_s: float
    wait_free: bool = True
    priority: Priority = Priority.BOTH

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def largest_slice_bytes(self) -> int:
        return self.slice_bytes or DEFAULT_SLICE_BYTES

    @property
    def peers(self) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank]
