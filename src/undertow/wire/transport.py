"""The seam between the engine and the wire: what every transport promises.

Frames between two peers arrive complete, once and in the order they were sent.
A body is sent from where it lies and received straight into where it belongs.
All methods are called in the engine thread.
"""

from __future__ import annotations

from typing import Any, Protocol

from undertow.core.frames import Garbled, Header


class Receiver(Protocol):
    """Whoever gets the frames."""

    def sink(self, peer: int, header: Header) -> Any | None:
        """For a frame with a body: a writable buffer of `header.length` bytes, or None: read it and drop it."""

    def arrived(self, peer: int, header: Header, body: Any | None) -> None:
        """A frame is complete; `body` is what `sink` gave."""

    def connected(self, peer: int) -> None:
        """A peer with the right token is there."""

    def lost(self, peer: int, reason: str) -> None:
        """The link to this peer is gone, for ever.

        If bytes from it were damaged it still hears what is sent to it from within this call, and nothing after.
        """


class Transport(Protocol):
    def send(self, peer: int, header: bytes, body: Any = None) -> None:
        """Queue one frame.  The body must stay untouched until the peer has it."""

    def is_connected(self, peer: int) -> bool:
        """Whether there is a link to this peer now."""

    @property
    def is_draining(self) -> bool:
        """Whether last words are still on their way to a peer whose bytes were damaged: to close would cut them off."""

    def checks_bodies(self, peer: int) -> bool:
        """Whether frames for this peer carry a checksum of their body."""

    @property
    def bytes_sent(self) -> int:
        """Bytes written so far, headers included."""

    def close(self) -> None:
        """Let go of all peers; frames that are not written yet are lost."""

    def abandon(self) -> None:
        """In a forked child: close the copies of the sockets, leave the parent's alone."""


def explain(error: Garbled) -> str:
    """Why the link is lost on which this came."""
    # It has shown the token: it speaks as we do, and whatever else comes is not what it has sent.
    return f"bytes from it were damaged on the way ({error}): look at cables, network cards and memory"
