"""Errors that undertow raises on purpose, and the facts that they carry.

UndertowError
├── ConfigError(ValueError)   the caller asked for something impossible
├── PlanError                 the plan does not fit this model or cluster, or cannot be read
├── MismatchError             ranks disagree: names the matter, the tensor and the ranks
├── PeerLost                  a worker is gone: names its rank and host, who noticed it, and this rank's step
├── Refused                   no or wrong token, wrong version: names the address
├── DriftError                replicas differ: names the tensor and the ranks
├── Garbled                   a message, frame or file from outside cannot be read
└── LabError                  the emulated cluster cannot be trusted

The facts are attributes.  An attribute is None, or empty, where the fact is not known.  Messages are made from them
here, for people only: nothing is decided by the text of a message, and tests/unit/test_source_claims.py reads the
source for it.  Errors keep their facts when they are copied, pickled or sent on by `error_transfer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from undertow.plain_text import list_words

MOST_NAMED_RANKS = 16


class UndertowError(Exception):
    """The root of the tree: `except UndertowError` catches them all."""


class ConfigError(UndertowError, ValueError):
    """A request of the caller that is impossible."""


class PlanError(UndertowError):
    """A plan that does not fit this model or cluster, or cannot be read."""


class MismatchError(UndertowError):
    """A disagreement of ranks about what they train or what they do next."""

    def __init__(self, message: str, *, matter: str = "", tensor: str = "", ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.matter = matter  # the call or table in which they differ
        self.tensor = tensor  # the first one that differs
        self.ranks = tuple(ranks)


class PeerLost(UndertowError):
    """The loss of a worker, which died, stopped, left or never came.

    Without `rank` and `ranks` the reason alone is the message.
    """

    def __init__(
        self,
        reason: str = "",
        *,
        rank: int | None = None,
        ranks: Sequence[int] = (),
        host: str = "",
        event: str = "was lost",
        silent_s: float | None = None,
        exit_code: int | None = None,
        seen_by: int | None = None,
        own_rank: int | None = None,
        step: int | None = None,
    ) -> None:
        if silent_s is not None and not reason:
            reason = f"no sign of life for {silent_s:.1f} s (process stopped, host down or link cut)"
        self.ranks = tuple(ranks) if rank is None else (rank,)  # all that are gone
        self.rank = self.ranks[0] if self.ranks else None
        self.host = host
        self.event = event
        self.reason = reason
        self.silent_s = silent_s  # for how long it gave no sign of life, if that is the reason
        self.exit_code = exit_code  # the one its process will have, if its script failed
        self.seen_by = seen_by  # the rank that noticed it first
        self.own_rank = own_rank  # the rank that raises this
        self.step = step  # of the rank that raises this; None before the workers have met
        super().__init__(self._describe())

    def _describe(self) -> str:
        if not self.ranks:
            return self.reason
        host = f" on host {self.host}" if self.host else ""
        reason = f": {self.reason}" if self.reason else ""
        seen_by = "" if self.seen_by in (None, self.own_rank) else f" (seen by rank {self.seen_by})"
        own = "" if self.own_rank is None else f"; this is rank {self.own_rank} at step {self.step}"
        return f"{name_ranks(self.ranks)}{host} {self.event}{reason}{seen_by}{own}"


class Refused(UndertowError):
    """A peer that did not know the job's token or speaks another version."""

    def __init__(self, reason: str, *, address: str = "") -> None:
        super().__init__(f"{address}: {reason}" if address else reason)
        self.reason = reason
        self.address = address


class DriftError(UndertowError):
    """A difference between replicas that must be bit-identical."""

    def __init__(self, message: str, *, tensor: str = "", ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.tensor = tensor  # the first one that differs
        self.ranks = tuple(ranks)  # where it is not as on most ranks


class Garbled(UndertowError):
    """A message, a frame or a file from outside this process that cannot be read."""


class LabError(UndertowError):
    """An emulated cluster that cannot be set up, or is not what it claims: figures from it would be wrong."""


_Error = TypeVar("_Error", bound=UndertowError)


def recast(error: UndertowError, kind: type[_Error]) -> _Error:
    """Return an error of this kind with the message and the facts of another one.

    An error that several threads raise is recast to its own kind for each: tracebacks would pile up on one object.
    """
    made = kind(str(error))
    vars(made).update(vars(error))
    return made


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as a phrase: `rank 2`, `ranks 2 and 3`, `ranks 0, 1 and 4`; long lists are cut."""
    names = [str(rank) for rank in sorted(set(ranks))]
    noun = "rank" if len(names) == 1 else "ranks"
    return f"{noun} {list_words(names, MOST_NAMED_RANKS)}" if names else "no ranks"
