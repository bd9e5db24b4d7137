"""Which bandwidth makes a plain job wait for the network for so much of its computing time; pure.

In: bytes and computing time of a step, then what a step took.  Out: bandwidths, each closer than the one before.
"""

from __future__ import annotations

from undertow.plan.cluster import PAYLOAD_SHARE

CLOSE = 0.03
TRIES = 3


def estimate_rate(gradient_bytes: int, *, hosts: int, exposed_s: float) -> float:
    """In bits per second: all gradients to the shards and back in this time, in both directions at once."""
    size_bytes = 2 * gradient_bytes * (hosts - 1) / hosts
    return size_bytes * 8 / PAYLOAD_SHARE / exposed_s


def correct_rate(rate_bits_per_s: float, *, found_s: float, wanted_s: float) -> float:
    """Communication takes longer in proportion on slower links; one try never changes them more than fourfold."""
    return rate_bits_per_s * min(4.0, max(0.25, found_s / wanted_s))


def is_close(found_s: float, wanted_s: float) -> bool:
    return abs(found_s - wanted_s) <= CLOSE * wanted_s
