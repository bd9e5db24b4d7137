"""Starts a script again as a single-process script, where it asks for NCCL and this host has none.

In: a call of `init_process_group`, the file that makes it.  Out: nothing, or this process begins anew with RANK hidden
from the script.  Nothing is guessed beforehand: a script whose backend is another one in the end is left alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from undertow.script.branches import runs_alone
from undertow.settings import PlainScripts, Settings

NCCL = "nccl"


@dataclass(frozen=True)
class Origin:
    """How this process was started."""

    command: list[str]
    folder: str
    environment: Mapping[str, str]

    @classmethod
    def read(cls) -> Origin:
        return cls([sys.executable, *sys.orig_argv[1:]], os.getcwd(), dict(os.environ))

    def start_again(self) -> NoReturn:
        """Begin anew in place of this process, with RANK hidden."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.chdir(self.folder)
        os.execve(self.command[0], self.command, {**self.environment, "UNDERTOW_PLAIN": PlainScripts.ON.value})


def needs_nccl(arguments: Sequence[Any], options: Mapping[str, Any], *, has_device: bool) -> bool:
    """Whether a call of `init_process_group` asks for NCCL and nothing else, where there is no device for it."""
    backend = options.get("backend", arguments[0] if arguments else None)
    return not has_device and str(backend).lower() == NCCL


def should_start_again(settings: Settings, callers: Sequence[str | None]) -> bool:
    """Whether a script that cannot run here as one of several workers can run as a single process.

    `callers` are the main script and the file that makes the call.  Hosts may differ, and all ranks have to go the
    same way: on several hosts it is for the user to say.
    """
    is_one_host = settings.local_world_size == settings.world_size > 1
    return is_one_host and settings.plain is PlainScripts.AUTO and any(map(runs_alone, callers))


def find_main() -> str | None:
    """The file of the main script."""
    return getattr(sys.modules.get("__main__"), "__file__", None)


def find_caller() -> str | None:
    """The file that calls a function of torch's: the innermost one that is neither torch's nor undertow's."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in ("undertow", "torch"):
            return frame.f_code.co_filename
        frame = frame.f_back
    return None
