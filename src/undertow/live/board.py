"""The board: what is known of every rank of a job, as its launcher sees it.

In: pulses, endings of workers, lines of rank 0, the time.  Out: a `Picture`, which every view shows in its way.
Pure, and for one thread at a time.  All text that comes from workers is made safe here, once.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from undertow.live.lines import LastLines
from undertow.live.pulse import LONGEST_NAME, Pulse, State
from undertow.plain_text import clean

# A worker whose interpreter is busy elsewhere misses a pulse or two.
SILENT_S = 5.0
HISTORY = 120  # points, one for each second or so
DONE = "done"  # how a worker ends that ends well


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One rank."""

    rank: int
    host: str
    state: str  # in words
    is_alarming: bool
    is_up: bool
    pulse: Pulse | None  # None: nothing was heard of it yet


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A job at one moment.  The figures are of all ranks that are heard of: rates and shares are means."""

    script: str
    world_size: int
    elapsed_s: float
    verdict: str  # how it ended, empty as long as it goes on
    heard: int  # of how many ranks there are pulses
    steps: int  # 0: not known
    steps_per_s: float
    wait_share: float
    waits_for: str
    turn_share: float
    out_bytes_per_s: float
    in_bytes_per_s: float
    layer: str
    layer_ms_per_step: float
    rows: list[Row]
    lines: list[str]  # the last ones of rank 0
    history: list[tuple[float, float]]  # steps per second and share of waits, the latest last


class Board:
    def __init__(self, script: str, *, now_s: float) -> None:
        self.lines = LastLines()
        self._script = clean(script)
        self._began_s = now_s
        self._world_size = 0
        self._verdict = ""
        self._hosts: dict[int, str] = {}  # of the ranks that were started here
        self._pulses: dict[int, Pulse] = {}
        self._heard_s: dict[int, float] = {}
        self._codes: dict[int, str] = {}
        self._history: deque[tuple[float, float]] = deque(maxlen=HISTORY)

    def expect(self, hosts: dict[int, str], world_size: int) -> None:
        """These ranks are started here, of so many in all."""
        self._hosts = {rank: clean(host) for rank, host in hosts.items()}
        self._world_size = world_size

    def hear(self, pulse: Pulse, now_s: float) -> None:
        """One that came late, came twice, or is nobody's, is ignored."""
        known = self._pulses.get(pulse.rank)
        if not 0 <= pulse.rank < self._world_size or (known is not None and pulse.sequence <= known.sequence):
            return
        names = {
            name: clean(getattr(pulse, name), LONGEST_NAME) for name in ("host", "stands_for", "waits_for", "layer")
        }
        self._pulses[pulse.rank] = msgspec.structs.replace(pulse, **names)
        self._heard_s[pulse.rank] = now_s

    def end(self, rank: int, words: str) -> None:
        """This worker has ended: `done`, or how it went wrong."""
        self._codes[rank] = words

    def conclude(self, verdict: str) -> None:
        """The job is over."""
        self._verdict = verdict

    def note_history(self) -> None:
        """One more point of what happened; to be called about once per second."""
        living = self._living()
        if living:
            self._history.append((_speed(living), _mean(pulse.wait_share for pulse in living)))

    def look(self, now_s: float) -> Picture:
        living = self._living() or list(self._pulses.values())
        slowest = max(living, key=lambda pulse: pulse.layer_ms_per_step, default=None)
        waiting = max(living, key=lambda pulse: pulse.wait_share, default=None)
        return Picture(
            script=self._script,
            world_size=self._world_size,
            elapsed_s=now_s - self._began_s,
            verdict=self._verdict,
            heard=len(self._pulses),
            steps=max((pulse.steps for pulse in self._pulses.values()), default=0),
            steps_per_s=_speed(living),
            wait_share=_mean(pulse.wait_share for pulse in living),
            waits_for=waiting.waits_for if waiting else "",
            turn_share=_mean(pulse.turn_share for pulse in living),
            out_bytes_per_s=_mean(pulse.out_bytes_per_s for pulse in living),
            in_bytes_per_s=_mean(pulse.in_bytes_per_s for pulse in living),
            layer=slowest.layer if slowest else "",
            layer_ms_per_step=slowest.layer_ms_per_step if slowest else 0.0,
            rows=[self._make_row(rank, now_s) for rank in sorted({*self._hosts, *self._pulses})],
            lines=self.lines.last(),
            history=list(self._history),
        )

    def _living(self) -> list[Pulse]:
        return [pulse for rank, pulse in self._pulses.items() if self._is_up(rank)]

    def _is_up(self, rank: int) -> bool:
        pulse = self._pulses.get(rank)
        return rank not in self._codes and not (pulse is not None and pulse.state is State.ENDED)

    def _make_row(self, rank: int, now_s: float) -> Row:
        pulse = self._pulses.get(rank)
        silent_s = now_s - self._heard_s.get(rank, now_s)
        is_silent = self._is_up(rank) and silent_s >= SILENT_S
        code = self._codes.get(rank, "")
        if code:
            state = f"ended: {code}" if code != DONE else "ended"
        elif is_silent:
            state = f"no word for {silent_s:.0f} s"
        else:
            state = describe_state(pulse)
        return Row(
            rank=rank,
            host=self._hosts.get(rank) or (pulse.host if pulse else ""),
            state=state,
            is_alarming=is_silent or code not in ("", DONE),
            is_up=self._is_up(rank),
            pulse=pulse,
        )


def describe_state(pulse: Pulse | None) -> str:
    """What a worker does, in words."""
    if pulse is None:
        return State.STARTING.value
    if pulse.state is State.WAITING:
        what = f"waiting for {pulse.stands_for}" if pulse.stands_for else "waiting"
        return f"{what}, {pulse.stands_s:.0f} s" if pulse.stands_s >= 2 else what
    if pulse.state is State.COMPUTING and pulse.turn_share > 0.9:
        return "other job's turn"
    return str(pulse.state.value)


def _speed(pulses: Sequence[Pulse]) -> float:
    """All ranks make the same steps: the median leaves out who started late."""
    known = [pulse.steps_per_s for pulse in pulses if pulse.steps]
    return statistics.median(known) if known else 0.0


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.fmean(found) if found else 0.0
