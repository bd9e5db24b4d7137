"""Exit report: which rank failed first, and the lines that tell the user; a pure function.

In: how every worker that we started ended.  Out: the exit code and the lines to print.
A follower is a rank that ended because of a `PeerLost`, or that the launcher ended; each follower gets one line.
The first cause comes last and in full, so that it stands at the bottom of the terminal and no cascade hides it.
If all followers lost the same rank, then that rank is the first cause, and the output of the first follower is shown in
full.  A rank is also the first cause if its script failed but the launcher had to end it because it took too long to
exit: the other ranks report that it failed.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from undertow.errors import PeerLost


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """End of one worker: its exit code, when, and the last lines of its stderr."""

    rank: int
    host: str
    code: int  # as Popen has it: below 0 means killed by that signal
    ended_s: float
    by_launcher: bool = False
    error: tuple[str, ...] = ()  # the last lines of its stderr
    loss: PeerLost | None = None  # the loss that ended it

    @property
    def summary(self) -> str:
        """The worker's loss if there is one, else the last line of stderr that is not empty."""
        if self.loss is not None:
            return f"undertow.errors.PeerLost: {_first_line(str(self.loss))}".rstrip()
        return next((line.strip() for line in reversed(self.error) if line.strip()), "")


@dataclass(frozen=True)
class RemoteFailure:
    """Cause for which the launchers ended a job before its workers had met; the same text on every host."""

    cause: str
    received_s: float


@dataclass(frozen=True)
class ExitReport:
    """Exit code of the launcher, and the lines that it prints."""

    exit_code: int
    lines: tuple[str, ...] = ()
    summary: str = "done"


def make_exit_report(
    endings: Sequence[WorkerExit],
    *,
    interrupted_by: signal.Signals | None = None,
    remote: RemoteFailure | None = None,
) -> ExitReport:
    """Find the first cause, which is the earliest failure that is not a consequence of another, and report it."""
    if interrupted_by is not None:
        return ExitReport(
            128 + interrupted_by,
            (f"undertow: interrupted by {interrupted_by.name}, all workers have ended",),
            f"interrupted by {interrupted_by.name}",
        )
    failed = [ending for ending in endings if ending.code != 0]
    if remote and _is_first(remote, endings):
        followers = sorted((e for e in endings if e.code or e.by_launcher), key=lambda ending: ending.rank)
        return ExitReport(
            1,
            (*(_describe_follower(each, reason="the job has ended") for each in followers), remote.cause),
            remote.cause,
        )
    if not failed:
        return ExitReport(0)
    first = min(failed, key=_order)
    lost = _find_lost(failed) if first.loss else None
    late = _find_late(endings, lost)
    blamed = late or first
    followers = [e for e in failed if e.rank != blamed.rank and not (lost and lost.rank == e.rank)]
    followers.sort(key=lambda ending: ending.rank)
    headline = f"rank {blamed.rank} (host {blamed.host}) failed first: {describe_code(blamed.code)}"
    if late:
        headline += "; it was still exiting when the launcher ended it"
    elif lost:
        headline = f"rank {lost.rank} (host {lost.host}) was lost first: {_first_line(lost.reason)}"
    error = blamed.error or ("(it wrote nothing to stderr)",)
    return ExitReport(to_exit_code(blamed.code), (*map(_describe_follower, followers), headline, *error), headline)


def _is_first(remote: RemoteFailure, endings: Sequence[WorkerExit]) -> bool:
    """Whether the remote cause ended workers here, or prevented their start, before one of them failed on its own."""
    has_effect = not endings or any(ending.by_launcher for ending in endings)
    return has_effect and not any(e.code and not e.by_launcher and e.ended_s < remote.received_s for e in endings)


def describe_code(code: int) -> str:
    """Describe an exit code in words, with a guess at its cause."""
    return f"{name_code(code)}{'; out of memory?' if -code == signal.SIGKILL else ''}"


def name_code(code: int) -> str:
    """Describe an exit code in words; signals by name."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def to_exit_code(code: int) -> int:
    """Return the code to exit with, as a shell would: 128 plus the number of the signal that killed the process."""
    return 128 - code if code < 0 else code


def _order(ending: WorkerExit) -> tuple[bool, bool, float, bool, int]:
    # Causes before followers, then by time; ties: signals before exit codes, then the lower rank.
    return ending.by_launcher, ending.loss is not None, ending.ended_s, ending.code > 0, ending.rank


def _find_lost(failed: Sequence[WorkerExit]) -> PeerLost | None:
    """Return the loss if all followers have lost the same rank, else None."""
    losses = [ending.loss for ending in sorted(failed, key=_order) if ending.loss]
    is_clear = all(loss.step is not None and loss.rank == losses[0].rank for loss in losses)
    return losses[0] if is_clear else None


def _find_late(endings: Sequence[WorkerExit], lost: PeerLost | None) -> WorkerExit | None:
    """Return the lost rank, with the exit code of its failed script, if the launcher ended it while it was exiting."""
    if lost is None or lost.exit_code is None:
        return None
    late = next((ending for ending in endings if ending.rank == lost.rank and ending.by_launcher), None)
    return late and replace(late, code=lost.exit_code)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _describe_follower(ending: WorkerExit, *, reason: str = "another rank failed") -> str:
    if ending.by_launcher:
        # The worker may have printed its error, and been ended while it was still exiting.
        outcome = f"failed too: {ending.summary}" if ending.loss else f"was ended, because {reason}"
        return f"rank {ending.rank} {outcome}"
    summary = f": {ending.summary}" if ending.summary else ""
    return f"rank {ending.rank} failed too: {describe_code(ending.code)}{summary}"
