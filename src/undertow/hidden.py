"""Environment variables of the launcher that are hidden from single-process scripts.

In: a call of `hide` before such a script runs.  Out: an `os.environ` without the variables, for the script and its
children; `read_environment` still returns them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

# Ranks and sizes that horovodrun sets.
HOROVOD = (
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
)
# Ranks, sizes and addresses that torchrun and similar launchers set.
RANKS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
    *HOROVOD,
)

_hidden: dict[str, str] = {}


def hide() -> None:
    """Hide the launcher's variables from the script."""
    _hidden.update({name: os.environ.pop(name) for name in RANKS if name in os.environ})


def show() -> None:
    """Restore the hidden variables."""
    os.environ.update(_hidden)
    _hidden.clear()


def is_hidden() -> bool:
    return bool(_hidden)


def read_environment() -> Mapping[str, str]:
    """Return the environment with the hidden variables, which take precedence over a RANK that the script sets."""
    return {**os.environ, **_hidden} if _hidden else os.environ
