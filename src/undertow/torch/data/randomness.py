"""Random numbers: the same on all ranks for weights and the order of the data, different while each computes its share.

In: the states of the generators that a script draws from (torch's, Python's, numpy's).
Out: rank 0's state on all ranks, or a separate stream of torch's numbers for this rank.
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
from undertow.torch.slots.device import seed_accelerator

# A large step between the seeds of ranks: the script itself may use consecutive seeds.
_SEED_STEP = 0x9E3779B97F4A7C15


class RandomState(msgspec.Struct, frozen=True):
    """The state of all generators that a script draws from on the host."""

    torch: bytes
    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, bytes, int, int, float]


def capture() -> RandomState:
    name, keys, position, has_gauss, gauss = np.random.get_state()
    return RandomState(
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        (str(name), np.asarray(keys, np.uint32).tobytes(), int(position), int(has_gauss), float(gauss)),
    )


def restore(state: RandomState) -> None:
    """Set all generators; raises `Garbled` if one rejects its state, as when rank 0 has another version of it."""
    name, keys, position, has_gauss, gauss = state.numpy
    try:
        torch.set_rng_state(torch.frombuffer(bytearray(state.torch), dtype=torch.uint8))
        random.setstate(state.python)
        np.random.set_state((name, np.frombuffer(keys, np.uint32), position, has_gauss, gauss))
    except (ValueError, RuntimeError, TypeError, OverflowError, IndexError) as error:
        raise Garbled(f"the random state of rank 0 cannot be used here: {error}") from None


def diverge(rank: int) -> None:
    """Let this rank draw different numbers than all other ranks.  Rank 0 continues with the script's own.

    The new seed of each generator is derived from its state, so a script with seeds is reproducible.
    """
    if rank == 0:
        return
    state = capture()
    torch.manual_seed(_choose_seed(state.torch, rank))
    random.seed(_choose_seed(state.python, rank))
    np.random.seed(_choose_seed(state.numpy, rank) % (1 << 32))


def _choose_seed(state: object, rank: int) -> int:
    return (zlib.crc32(msgspec.msgpack.encode(state)) + rank * _SEED_STEP) % (1 << 63)


class RandomStream:
    """A random state that the generators have only inside `running` blocks."""

    def __init__(self, state: RandomState) -> None:
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


def follow(state: RandomState, *, torch_only: bool) -> RandomStream | None:
    """Return a stream that starts from this state; None if the script's own generators are in this state already.

    With `torch_only`, only torch's generator counts.
    """
    own = capture()
    is_same = own.torch == state.torch and (torch_only or own == state)
    return None if is_same else RandomStream(state)


class ComputeStream:
    """The stream that torch draws from while this rank computes its share.  On rank 0 it is the script's own."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._state: torch.Tensor | None = None
        self._script_state: torch.Tensor | None = None  # the script's own state while the stream is running
        self._is_running = False
        self._is_over = False

    def start(self) -> None:
        """Switch to the stream, because a share of the data is about to be computed."""
        if self._rank == 0 or self._is_running or self._is_over:
            return
        self._is_running = True
        self._script_state = torch.get_rng_state()
        if self._state is None:
            seed = (torch.initial_seed() + self._rank * _SEED_STEP) % (1 << 63)
            self._state = torch.Generator().manual_seed(seed).get_state()
            seed_accelerator(seed)
        torch.set_rng_state(self._state)

    def stop(self) -> None:
        """Suspend the stream; the caller sets the next state."""
        if self._is_running:
            self._is_running = False
            self._state = torch.get_rng_state()

    def end(self) -> None:
        """Return permanently to the script's own numbers."""
        self._is_over = True
        if self._is_running and self._script_state is not None:
            torch.set_rng_state(self._script_state)
        self._is_running = False
