"""Which rank failed first, and what the user is told: a pure function.

In: how every worker that we started ended.  Out: the exit code and the words.
A follower is a rank whose own error is PeerLost, or which the launcher ended;
followers are one line each.  The first cause comes last and in full, so that it
stands at the bottom of the terminal and no cascade hides it.  If all that is known
is that everybody lost the same rank, then that rank is the first cause, and one of
those who noticed has the last word.  A rank that took so long to exit after its script
had failed that the launcher ended it is the first cause as well: the others say that it failed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

# The last line of a traceback, also inside of an ExceptionGroup's frame of bars, and behind the rank that torch puts
# before each line once there is a process group.
_FRAME = re.compile(r"^(?:\[rank\d+\]:)?[\s|+-]*")
_PEER_LOST = re.compile(_FRAME.pattern + r"(?:[\w.]+\.)?PeerLost(?::|$)")
# The words of `Loss` in core/membership.py, and of the steward who adds where it was noticed.
_LOSS = re.compile(r"PeerLost: rank (\d{1,9}) on host (\S+) was lost: (.*?)(?:; this is rank \d+ at step \d+)?$")
# The reasons that `runtime/process.py` and `script/runner.py` give to the other ranks when a script fails.
_SCRIPT_FAILED = re.compile(r"its script (?:failed with |ended with sys\.exit\((.*?)\)(?: \(seen by rank \d+\))?$)")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one worker ended."""

    rank: int
    host: str
    code: int  # as Popen has it: below 0 means killed by that signal
    ended_s: float
    by_launcher: bool = False
    error: tuple[str, ...] = ()  # the last lines of its stderr

    @property
    def lost_a_peer(self) -> bool:
        return bool(self.peer_lost)

    @property
    def peer_lost(self) -> str:
        """Its last PeerLost, in one line; empty if there is none."""
        return next((_FRAME.sub("", line).rstrip() for line in reversed(self.error) if _PEER_LOST.match(line)), "")

    @property
    def summary(self) -> str:
        """The last thing it said."""
        return next((line.strip() for line in reversed(self.error) if line.strip()), "")


@dataclass(frozen=True)
class Elsewhere:
    """Why the launchers ended a job whose workers had not met yet: the same words on every host."""

    cause: str
    heard_s: float


@dataclass(frozen=True)
class Verdict:
    """What the launcher exits with and prints, line by line."""

    exit_code: int
    lines: tuple[str, ...] = ()
    summary: str = "done"


def decide(
    endings: Sequence[Ending], *, interrupted_by: signal.Signals | None = None, elsewhere: Elsewhere | None = None
) -> Verdict:
    """The first cause is the earliest failure that is not a consequence of another."""
    if interrupted_by is not None:
        return Verdict(
            128 + interrupted_by,
            (f"undertow: interrupted by {interrupted_by.name}, all workers have ended",),
            f"interrupted by {interrupted_by.name}",
        )
    failed = [ending for ending in endings if ending.code != 0]
    if elsewhere and _is_first(elsewhere, endings):
        followers = sorted((e for e in endings if e.code or e.by_launcher), key=lambda ending: ending.rank)
        return Verdict(
            1,
            (*(_describe_follower(each, reason="the job has ended") for each in followers), elsewhere.cause),
            elsewhere.cause,
        )
    if not failed:
        return Verdict(0)
    first = min(failed, key=_order)
    lost = _find_lost(failed) if first.lost_a_peer else None
    late = _find_late(endings, lost)
    blamed = late or first
    followers = [e for e in failed if e.rank != blamed.rank and not (lost and lost.rank == e.rank)]
    followers.sort(key=lambda ending: ending.rank)
    headline = f"rank {blamed.rank} (host {blamed.host}) failed first: {describe_code(blamed.code)}"
    if late:
        headline += "; it was still exiting when the launcher ended it"
    elif lost:
        headline = f"rank {lost.rank} (host {lost.host}) was lost first: {lost.reason}"
    error = blamed.error or ("(it wrote nothing to stderr)",)
    return Verdict(_exit_code(blamed.code), (*map(_describe_follower, followers), headline, *error), headline)


def _is_first(elsewhere: Elsewhere, endings: Sequence[Ending]) -> bool:
    """Whether the cause has ended workers here, or kept all from starting, before one had failed by itself."""
    has_effect = not endings or any(ending.by_launcher for ending in endings)
    return has_effect and not any(e.code and not e.by_launcher and e.ended_s < elsewhere.heard_s for e in endings)


def describe_code(code: int) -> str:
    """An exit code in words; signals by name."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}{'; out of memory?' if -code == signal.SIGKILL else ''}"


def _order(ending: Ending) -> tuple[bool, bool, float, bool, int]:
    # Causes before followers, then time; in the same instant a signal before an exit code, then the lower rank.
    return ending.by_launcher, ending.lost_a_peer, ending.ended_s, ending.code > 0, ending.rank


@dataclass(frozen=True)
class _Lost:
    rank: int
    host: str
    reason: str


def _find_lost(failed: Sequence[Ending]) -> _Lost | None:
    """The rank that everybody who lost somebody has lost; None if they do not agree."""
    noticed = sorted((ending for ending in failed if ending.lost_a_peer), key=_order)
    found = [_LOSS.search(ending.peer_lost) for ending in noticed]
    losses = [_Lost(int(match[1]), match[2], match[3]) for match in found if match]
    return losses[0] if len(losses) == len(noticed) and len({loss.rank for loss in losses}) == 1 else None


def _find_late(endings: Sequence[Ending], lost: _Lost | None) -> Ending | None:
    """The lost rank, with the exit code it was about to have, if its script failed and the launcher ended its exit."""
    said = _SCRIPT_FAILED.match(lost.reason) if lost else None
    if lost is None or said is None:
        return None
    late = next((ending for ending in endings if ending.rank == lost.rank and ending.by_launcher), None)
    return late and replace(late, code=_foresee_code(said[1]))


def _foresee_code(argument: str | None) -> int:
    """The exit code of Python after `sys.exit(argument)`, or after an exception if there is none."""
    if argument is None or not re.fullmatch(r"-?\d{1,9}", argument):
        return 1
    return int(argument) & 0xFF or 1  # a rank that the others have lost did not succeed


def _describe_follower(ending: Ending, *, reason: str = "another rank failed") -> str:
    if ending.by_launcher:
        # It may have had its say, and been ended while it was still leaving.
        words = f"failed too: {ending.peer_lost}" if ending.lost_a_peer else f"was ended, because {reason}"
        return f"rank {ending.rank} {words}"
    words = ending.peer_lost or ending.summary
    return f"rank {ending.rank} failed too: {describe_code(ending.code)}{': ' if words else ''}{words}"


def _exit_code(code: int) -> int:
    return 128 - code if code < 0 else code
