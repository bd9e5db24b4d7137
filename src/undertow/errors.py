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

The facts are attributes, which are None or empty if the fact is not known.  Messages are for people only: no code
decides by the text of a message, which tests/unit/test_source_claims.py ensures.  Errors keep their facts when they
are copied, pickled or passed on by `error_transfer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from undertow.plain_text import list_words

MOST_NAMED_RANKS = 16


class UndertowError(Exception):
    """Base class of all errors of undertow."""


class ConfigError(UndertowError, ValueError):
    """A request by the caller that is impossible."""


class PlanError(UndertowError):
    """A plan that does not fit this model or cluster, or cannot be read."""


class MismatchError(UndertowError):
    """A disagreement between ranks about what they train or what they do next."""

    def __init__(self, message: str, *, matter: str = "", tensor: str = "", ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.matter = matter  # the call or table in which they differ
        self.tensor = tensor  # the first tensor that differs
        self.ranks = tuple(ranks)


class PeerLost(UndertowError):
    """The loss of a worker, which died, stopped, left or never arrived.

    Without `rank` and `ranks`, the message is the reason alone.
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
        self.ranks = tuple(ranks) if rank is None else (rank,)  # all lost ranks
        self.rank = self.ranks[0] if self.ranks else None
        self.host = host
        self.event = event
        self.reason = reason
        self.silent_s = silent_s  # duration of its silence, if that is the reason
        self.exit_code = exit_code  # exit code that its process will have, if its script failed
        self.seen_by = seen_by  # the rank that noticed the loss first
        self.own_rank = own_rank  # the rank that raises this error
        self.step = step  # step of the rank that raises this error; None before the workers have met
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
        self.tensor = tensor  # the first tensor that differs
        self.ranks = tuple(ranks)  # ranks on which it differs from most others


class Garbled(UndertowError):
    """A message, frame or file from outside this process that cannot be read."""


class LabError(UndertowError):
    """An emulated cluster that cannot be set up or differs from its specification, so that figures would be wrong."""


_Error = TypeVar("_Error", bound=UndertowError)


def recast(error: UndertowError, kind: type[_Error]) -> _Error:
    """Return a new error of this kind with the message and facts of another error.

    An error that several threads raise is recast to its own kind for each thread; otherwise tracebacks would pile up on
    one object.
    """
    made = kind(str(error))
    vars(made).update(vars(error))
    return made


def name_ranks(ranks: Iterable[int]) -> str:
    """Format ranks as a phrase: `rank 2`, `ranks 2 and 3`, `ranks 0, 1 and 4`.  Long lists are shortened."""
    names = [str(rank) for rank in sorted(set(ranks))]
    noun = "rank" if len(names) == 1 else "ranks"
    return f"{noun} {list_words(names, MOST_NAMED_RANKS)}" if names else "no ranks"
