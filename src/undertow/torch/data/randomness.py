"""Random numbers: the same on all ranks for weights and the order of the data, different where each computes its part.

In: the states of the generators that a script draws from (torch's, Python's, numpy's).
Out: rank 0's state on all ranks, or a stream of torch's of this rank's own.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import torch

from undertow.errors import Garbled
from undertow.torch.device import seed_accelerator

# Far apart: neighbouring seeds of a script are its own business.
_APART = 0x9E3779B97F4A7C15


class State(msgspec.Struct, frozen=True):
    """Of everything a script draws from on the host."""

    torch: bytes
    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, bytes, int, int, float]


def capture() -> State:
    name, keys, place, has_gauss, gauss = np.random.get_state()
    return State(
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        (str(name), np.asarray(keys, np.uint32).tobytes(), int(place), int(has_gauss), float(gauss)),
    )


def restore(state: State) -> None:
    """Raises `Garbled` if a generator does not take it, as where rank 0 has another version of it."""
    name, keys, place, has_gauss, gauss = state.numpy
    try:
        torch.set_rng_state(torch.frombuffer(bytearray(state.torch), dtype=torch.uint8))
        random.setstate(state.python)
        np.random.set_state((name, np.frombuffer(keys, np.uint32), place, has_gauss, gauss))
    except (ValueError, RuntimeError, TypeError, OverflowError, IndexError) as error:
        raise Garbled(f"the random state of rank 0 cannot be used here: {error}") from None


def diverge(rank: int) -> None:
    """Let this rank draw other numbers than any other from now on.  The first rank goes on with the script's own.

    Each generator's numbers follow from what it has drawn so far, so a script with seeds can be repeated.
    """
    if rank == 0:
        return
    state = capture()
    torch.manual_seed(_choose_seed(state.torch, rank))
    random.seed(_choose_seed(state.python, rank))
    np.random.seed(_choose_seed(state.numpy, rank) % (1 << 32))


def _choose_seed(state: object, rank: int) -> int:
    return (zlib.crc32(msgspec.msgpack.encode(state)) + rank * _APART) % (1 << 63)


class Stream:
    """States of which one is in force from time to time."""

    def __init__(self, state: State) -> None:
        self.state = state

    @contextmanager
    def running(self) -> Iterator[None]:
        before = capture()
        restore(self.state)
        try:
            yield
        finally:
            self.state = capture()
            restore(before)


def follow(state: State, *, torch_only: bool) -> Stream | None:
    """Numbers that start from this state; None if the script's own are the same on this rank.

    `torch_only` says that nothing but torch's are drawn.
    """
    own = capture()
    is_same = own.torch == state.torch and (torch_only or own == state)
    return None if is_same else Stream(state)


class OwnNumbers:
    """What torch draws on this rank while it computes its part.  The first rank goes on with the script's own."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._state: torch.Tensor | None = None
        self._scripts: torch.Tensor | None = None  # the script's own state, while this one is in its place
        self._is_running = False
        self._is_over = False

    def start(self) -> None:
        """A part of the data is about to be computed."""
        if self._rank == 0 or self._is_running or self._is_over:
            return
        self._is_running = True
        self._scripts = torch.get_rng_state()
        if self._state is None:
            seed = (torch.initial_seed() + self._rank * _APART) % (1 << 63)
            self._state = torch.Generator().manual_seed(seed).get_state()
            seed_accelerator(seed)
        torch.set_rng_state(self._state)

    def stop(self) -> None:
        """All compute the same again; whose numbers go on then is for others to say."""
        if self._is_running:
            self._is_running = False
            self._state = torch.get_rng_state()

    def end(self) -> None:
        """The script draws from its own numbers again, from now on."""
        self._is_over = True
        if self._is_running and self._scripts is not None:
            torch.set_rng_state(self._scripts)
        self._is_running = False
