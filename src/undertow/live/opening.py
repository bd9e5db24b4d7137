"""Whether a job is watched at all; light enough for every launch.

In: the user's wishes, the environment.  Out: the show, if there shall be one, and the workers' environment, which says
where pulses go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undertow.live.show import Show


@contextmanager
def watch(
    script: str, environ: Mapping[str, str], *, live: bool, port: int | None
) -> Iterator[tuple[Show | None, dict[str, str]]]:
    """Inside of the block the job may be run.  Raises `ConfigError` if the port cannot be had."""
    if not live and port is None:
        yield None, {**environ, "UNDERTOW_LIVE": ""}  # that of an outer job is not ours
        return
    from undertow.live.show import open_show  # brings a web server and a dashboard along

    with open_show(script, live=live, port=port) as show:
        yield show, {**environ, "UNDERTOW_LIVE": show.address}
