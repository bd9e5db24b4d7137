"""The interface between the engine and the wire, with the promises of every transport.

Frames between two peers arrive complete, once and in the order they were sent.
A body is sent from its own memory and received straight into its sink.
All methods are called in the engine thread.
"""

from __future__ import annotations

from typing import Any, Protocol

from undertow.engine.core.frames import Garbled, Header


class Receiver(Protocol):
    """Receiver of frames and of changes of links."""

    def sink(self, peer: int, header: Header) -> Any | None:
        """Return a writable buffer of `header.length` bytes for a frame's body, or None if it should be dropped."""

    def arrived(self, peer: int, header: Header, body: Any | None) -> None:
        """Handle a complete frame; `body` is the buffer that `sink` returned."""

    def connected(self, peer: int) -> None:
        """Note that a peer with the right token is connected."""

    def lost(self, peer: int, reason: str) -> None:
        """Note that the link to this peer is lost for good.

        If the reason is damaged bytes, frames sent from within this call still reach the peer; later frames do not.
        """


class Transport(Protocol):
    """Links of one process to all other processes of a group."""

    def send(self, peer: int, header: bytes, body: Any = None) -> None:
        """Queue one frame.  The body must stay untouched until the peer has it."""

    def is_connected(self, peer: int) -> bool:
        """Whether there is a link to this peer now."""

    @property
    def is_draining(self) -> bool:
        """Whether the last frames to a peer that sent damaged bytes are not written yet: closing would cut them off."""

    def checks_bodies(self, peer: int) -> bool:
        """Whether frames for this peer carry a checksum of their body."""

    @property
    def bytes_sent(self) -> int:
        """Bytes written so far, headers included."""

    def close(self) -> None:
        """Close all links.  Frames that are not written yet are lost."""

    def abandon(self) -> None:
        """Close the copies of the sockets in a forked child; the parent's sockets stay open."""


def explain(error: Garbled) -> str:
    """Return the reason for the loss of a link that received damaged bytes."""
    # The peer knows the token, so it runs undertow and sends valid frames: anything else was changed on the way.
    return f"bytes from it were damaged on the way ({error}): check cables, network cards and memory"
