"""The interface between the engine and the wire, with the promises of every transport.

Frames between two peers arrive complete, once and in the order they were sent.
A body is sent from its own memory and received straight into its sink.
All methods are called in the engine thread.
"""

from __future__ import annotations

from typing import Any, Protocol

from undertow.engine.core.frames import Garbled, Header


class Receiver(Protocol):
    """Receiver of frames, and of news about links."""

    def sink(self, peer: int, header: Header) -> Any | None:
        """Return a writable buffer of `header.length` bytes for a frame's body, or None to have it read and dropped."""

    def arrived(self, peer: int, header: Header, body: Any | None) -> None:
        """Take a complete frame; `body` is the buffer that `sink` returned."""

    def connected(self, peer: int) -> None:
        """Note that a peer with the right token is connected."""

    def lost(self, peer: int, reason: str) -> None:
        """Note that the link to this peer is gone, for good.

        If bytes from it were damaged, frames sent from within this call still reach it, and none after.
        """


class Transport(Protocol):
    """Links of one process to all others of a group."""

    def send(self, peer: int, header: bytes, body: Any = None) -> None:
        """Queue one frame.  The body must stay untouched until the peer has it."""

    def is_connected(self, peer: int) -> bool:
        """Whether there is a link to this peer now."""

    @property
    def is_draining(self) -> bool:
        """Whether last frames are on their way to a peer whose bytes were damaged: to close would cut them off."""

    def checks_bodies(self, peer: int) -> bool:
        """Whether frames for this peer carry a checksum of their body."""

    @property
    def bytes_sent(self) -> int:
        """Bytes written so far, headers included."""

    def close(self) -> None:
        """Close all links; frames that are not written yet are lost."""

    def abandon(self) -> None:
        """Close the copies of the sockets in a forked child; the parent's stay open."""


def explain(error: Garbled) -> str:
    """Return the reason why a link on which damaged bytes came is lost."""
    # The peer has shown the token, so it sends frames as this process does: other bytes are not what it has sent.
    return f"bytes from it were damaged on the way ({error}): look at cables, network cards and memory"
