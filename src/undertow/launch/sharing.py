"""What `undertow run --share` tells the workers, in their environment.

In: the options of the command line, the user's environment.  Out: the variables to set on top of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from undertow.errors import ConfigError
from undertow.launch.job import read_job_settings


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """How a job wants to share; None and False are no wish."""

    shares: bool = False
    weight: float | None = None
    urgent: bool = False
    name: str | None = None

    def to_environment(self, script: str, *, is_module: bool, environ: Mapping[str, str]) -> dict[str, str]:
        """Raises `ConfigError` for a wish of a job that does not share."""
        made: dict[str, str] = {}
        if self.shares:
            made["UNDERTOW_SHARE"] = "1"
            if not environ.get("UNDERTOW_SHARE_NAME"):
                made["UNDERTOW_SHARE_NAME"] = script.rpartition(".")[2] if is_module else Path(script).stem
        elif (option := self._find_option()) and not read_job_settings(environ).share:
            raise ConfigError(f"{option} is for jobs that share their devices: add --share, or leave it out")
        if self.weight is not None:
            made["UNDERTOW_SHARE_WEIGHT"] = str(self.weight)
        if self.urgent:
            made["UNDERTOW_SHARE_URGENT"] = "1"
        if self.name is not None:
            made["UNDERTOW_SHARE_NAME"] = self.name
        return made

    def _find_option(self) -> str | None:
        given = {"--weight": self.weight is not None, "--urgent": self.urgent, "--share-name": self.name is not None}
        return next((option for option, is_given in given.items() if is_given), None)
