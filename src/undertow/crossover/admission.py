"""Whether one more job fits into a device's memory beside those that are there.

In: what the newcomer will still take, what is free, what the others will still take.
Out: None, or why not, in words.
"""

from __future__ import annotations

from collections.abc import Sequence

GIGA = 1e9


def find_obstacle(growth_bytes: int, free_bytes: int, *, others_bytes: Sequence[int] = ()) -> str | None:
    """Why a job that takes so many bytes more cannot be here; others that have just begun take theirs first.

    Nothing is known of activations: this refuses what cannot work, and does not promise what can.
    """
    reserved = sum(others_bytes)
    if not others_bytes or growth_bytes + reserved <= free_bytes:
        return None
    spoken_for = f", of which the others are about to take {reserved / GIGA:.1f}" if reserved else ""
    return (
        f"the device has not enough memory for one more job: its gradients and its optimizer need "
        f"{growth_bytes / GIGA:.1f} GB, and {free_bytes / GIGA:.1f} GB are free{spoken_for}. Start it when another "
        "job has ended, or without sharing"
    )
