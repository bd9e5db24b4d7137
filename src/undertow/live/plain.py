"""The live view where there is no terminal: one line now and then, fit for a log.

In: a picture of the job.  Out: a sentence, or a warning.
"""

from __future__ import annotations

from undertow.live.board import Picture
from undertow.live.wording import format_ms, format_rate, format_share, format_speed

EVERY_S = 5.0


def describe(picture: Picture) -> str:
    """`step 1240, 8.3 steps/s, 9 % waiting (most for fc6.weight), out 93 MB/s, in 92 MB/s, slowest layer fc6 31 ms`."""
    if not picture.heard:
        return "nothing heard of the workers yet"
    parts = [*_describe_steps(picture), _describe_waits(picture)]
    if picture.turn_share >= 0.01:
        parts.append(f"{format_share(picture.turn_share)} other job's turn")
    each = " each" if picture.heard > 1 else ""
    parts.append(f"out {format_rate(picture.out_bytes_per_s)}")
    parts.append(f"in {format_rate(picture.in_bytes_per_s)}{each}")
    if picture.layer:
        parts.append(f"slowest layer {picture.layer} {format_ms(picture.layer_ms_per_step)}")
    return ", ".join(parts)


def _describe_steps(picture: Picture) -> list[str]:
    if not picture.steps:
        return ["no step seen yet"]
    return [f"step {picture.steps}", format_speed(picture.steps_per_s)]


def _describe_waits(picture: Picture) -> str:
    share = f"{format_share(picture.wait_share)} waiting"
    return f"{share} (most for {picture.waits_for})" if picture.waits_for and picture.wait_share >= 0.01 else share


def find_alarms(picture: Picture, known: set[int]) -> list[str]:
    """What is said at once, of ranks that were not alarming before; `known` is kept up to date."""
    alarming = {row.rank: row for row in picture.rows if row.is_alarming and row.is_up}
    fresh = [row for rank, row in alarming.items() if rank not in known]
    known.clear()
    known.update(alarming)
    return [f"rank {row.rank}{f' on host {row.host}' if row.host else ''}: {row.state}" for row in fresh]
