"""Writes the trace of one rank while the job runs.

In: trace events.  Out: `rank-N.json`, a JSON array with one event per line, which can be read even if it is cut off.
Only the chosen steps are written, with the facts that are needed to read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path

from undertow.files import create_private
from undertow.observe.trace.chrome import Composer, TraceHeader
from undertow.observe.trace.clocks import Clocks
from undertow.tracing import events
from undertow.tracing.events import TraceEvent
from undertow.tracing.window import Window


class TraceFile:
    """An event reader that writes a file.  `on_full` is called when the last chosen step has been written."""

    def __init__(
        self, folder: Path, header: TraceHeader, window: Window, on_full: Callable[[], None] = lambda: None
    ) -> None:
        self.title = f"the trace in {folder}"
        folder.mkdir(parents=True, exist_ok=True)
        self._clocks = Clocks()
        self._composer = Composer(header, self._clocks, window)
        self._needs_clock = header.rank != 0 and header.source == "worker"
        self._held: list[TraceEvent] = []  # events from before the first comparison of the clocks
        self._window = window
        self._on_full = on_full
        self._is_full = False
        self._separator = "[\n"
        self._file = TextIOWrapper(create_private(folder / f"rank-{header.rank}.json"), encoding="utf-8")
        self._write(self._composer.open())

    def take(self, taken: Sequence[TraceEvent]) -> None:
        if self._is_full:
            return
        for event in taken:
            if type(event) is events.Compared:
                self._clocks.compare(event.time_s, event.offset_s, event.round_trip_s)
        self._held += taken
        if self._needs_clock and not self._clocks.is_compared:
            return
        self._write_held()
        if self._window.is_over(self._composer.step):
            self._end(f"only steps {self._window} were requested")
            self._on_full()

    def close(self) -> None:
        if not self._is_full:
            self._write_held()
            self._end("the job ended")

    def _write_held(self) -> None:
        held, self._held = self._held, []
        self._write(self._composer.compose(held))

    def _end(self, reason: str) -> None:
        self._is_full = True
        self._write(self._composer.close(reason))
        self._file.write("\n]\n")
        self._file.close()

    def _write(self, lines: Sequence[str]) -> None:
        if lines:
            self._file.write(self._separator + ",\n".join(lines))
            self._file.flush()
            self._separator = ",\n"
