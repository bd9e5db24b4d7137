"""Variables of the launcher that are hidden from single-process scripts.

In: `hide`, before such a script runs.  Out: an `os.environ` without them, which the script and its children see;
`read_environment` still returns them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

# Ranks and sizes, as horovodrun sets them.
HOROVOD = (
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
)
# Ranks, sizes and addresses, as torchrun and similar launchers set them.
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
    """Return the environment with the hidden variables; they win over a RANK that the script sets itself."""
    return {**os.environ, **_hidden} if _hidden else os.environ
