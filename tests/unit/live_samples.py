"""Pulses and boards for tests of the live view."""

from __future__ import annotations

from typing import Any

from undertow.live.board import Board, Picture
from undertow.live.pulse import Pulse, State

FIGURES: dict[str, Any] = {
    "uptime_s": 150.0,
    "state": State.COMPUTING,
    "steps": 1240,
    "steps_per_s": 8.31,
    "waited_s": 13.5,
    "wait_share": 0.09,
    "waits_for": "conv1.weight",
    "wait_ms_per_step": 10.9,
    "layer": "fc6",
    "layer_ms_per_step": 31.2,
    "bytes_out": 14_000_000_000,
    "bytes_in": 13_000_000_000,
    "out_bytes_per_s": 93e6,
    "in_bytes_per_s": 92e6,
    "link_bytes_per_s": 118e6,
}


def make_pulse(rank: int = 0, sequence: int = 1, **figures: Any) -> Pulse:
    return Pulse(rank=rank, sequence=sequence, **{"host": f"node{rank}", **FIGURES, **figures})


def make_board(ranks: int = 2, **figures: Any) -> Board:
    """Began at 0, and has heard of everybody at 100."""
    board = Board("train.py", now_s=0.0)
    board.expect({rank: f"node{rank}" for rank in range(ranks)}, ranks)
    for rank in range(ranks):
        board.hear(make_pulse(rank, **figures), 100.0)
    return board


def make_picture(ranks: int = 2, **figures: Any) -> Picture:
    return make_board(ranks, **figures).look(101.0)
