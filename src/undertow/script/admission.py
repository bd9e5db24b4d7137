"""Refuses a single-process script that another launcher has started several times.

In: the script's file, the environment.  Out: `ConfigError`, or nothing.
Imports little: every process that imports torch may come here.
"""

from __future__ import annotations

import os

from undertow.launch.foreign import refuse_processes
from undertow.script.awareness import speaks_of_ranks


def check_launcher(script: str | None) -> None:
    """Raise `ConfigError` if each process would train the script alone.

    A script that speaks of ranks may read them from that launcher's variables; `undertow.init` checks for itself.
    """
    if script is not None and not speaks_of_ranks(script):
        refuse_processes(os.environ, script=os.path.basename(script))
