"""What a group is made of; the same on all its ranks but for `rank`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    rank: int
    hosts: list[str]
    job: int
    slice_bytes: int
    credit_bytes: int
    silence_timeout_s: float
    stall_timeout_s: float

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def peers(self) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank]
