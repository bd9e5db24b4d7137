"""Every error that undertow raises on purpose.

UndertowError
├── ConfigError(ValueError)   the caller asked for something impossible
├── PlanError                 the plan does not fit this model or cluster
├── MismatchError             ranks disagree: names the tensor and the ranks
├── PeerLost                  names rank, host, step, and for how long it was silent
├── Refused                   no or wrong token, wrong version
├── DriftError                replicas differ: names the tensor
├── Garbled                   a message, frame or file from outside that cannot be read
└── LabError                  the emulated cluster cannot be trusted
"""

from __future__ import annotations


class UndertowError(Exception):
    """The root of the tree: `except UndertowError` catches them all."""


class ConfigError(UndertowError, ValueError):
    """The caller asked for something impossible."""


class PlanError(UndertowError):
    """The plan does not fit this model or cluster, or cannot be read."""


class MismatchError(UndertowError):
    """Ranks disagree about what they train or what they do next."""


class PeerLost(UndertowError):
    """A worker died, stopped, left or never came; the message names it."""


class Refused(UndertowError):
    """A peer did not know the job's token or speaks another version."""


class DriftError(UndertowError):
    """Replicas that must be bit-identical are not."""


class Garbled(UndertowError):
    """What came from outside this process cannot be read: a message, a frame or a file."""


class LabError(UndertowError):
    """The emulated cluster cannot be set up, or is not what it claims: figures from it would be wrong."""
