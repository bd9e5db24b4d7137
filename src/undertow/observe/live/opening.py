"""Opens the live view if the user wants one.  Imports little, because every launch runs this.

In: the user's options, the environment.  Out: the view or None, and the environment of the workers, which tells them
where to send status reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undertow.observe.live.live_view import LiveView


@contextmanager
def open_view(
    script: str, environ: Mapping[str, str], *, live: bool, port: int | None
) -> Iterator[tuple[LiveView | None, dict[str, str]]]:
    """Open the view around a job.  Raises `ConfigError` if the port is not available."""
    if not live and port is None:
        yield None, {**environ, "UNDERTOW_LIVE": ""}  # these workers must not report to the view of an outer job
        return
    from undertow.observe.live.live_view import open_live_view  # imports a web server and a dashboard

    with open_live_view(script, live=live, port=port) as view:
        yield view, {**environ, "UNDERTOW_LIVE": view.address}
