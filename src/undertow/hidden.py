"""The launcher's variables, for undertow alone where a script must not see them.

In: `hide`, before a single-process script runs.  Out: `os.environ`, which the script and its children see, without
them; `read_environment` has them still.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

# Where a worker of Horovod's stands.
HOROVOD = (
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
)
# Where a worker stands, as torchrun and launchers like it say it.
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
    """Take the launcher's variables away from the script."""
    _hidden.update({name: os.environ.pop(name) for name in RANKS if name in os.environ})


def show() -> None:
    """Put them back."""
    os.environ.update(_hidden)
    _hidden.clear()


def is_hidden() -> bool:
    return bool(_hidden)


def read_environment() -> Mapping[str, str]:
    """The environment with what is hidden, which wins: a script may set a RANK of its own in its place."""
    return {**os.environ, **_hidden} if _hidden else os.environ
