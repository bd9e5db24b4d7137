"""Whether a script sees RANK and its relatives: decided before it runs.

In: the settings, the script's file and arguments, whether this host can run NCCL.  Out: a `Sight`.
A script for DistributedDataParallel needs them.  A single-process script must not see them if it would take another
branch then: `--plain on` says so, and so does a distributed branch that cannot run here.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from undertow.errors import ConfigError
from undertow.script.branches import needs_nccl
from undertow.settings import PlainScripts, Settings

# NVIDIA's driver, also below Windows, and AMD's.
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


@dataclass(frozen=True)
class Sight:
    """`is_hidden`: the script finds no variables of its launcher.  `words`: why, unless the user asked for it."""

    is_hidden: bool
    words: str = ""


def decide_sight(
    settings: Settings, script: str | None, arguments: Sequence[str], has_nccl: Callable[[], bool]
) -> Sight:
    """Raises `ConfigError` where the ranks of several hosts could decide differently."""
    if settings.plain is not PlainScripts.AUTO:
        return Sight(settings.plain is PlainScripts.ON)
    if not needs_nccl(script, arguments) or has_nccl():
        return Sight(False)
    name = os.path.basename(script or "the script")
    if settings.local_world_size != settings.world_size:
        raise ConfigError(
            f"{name} needs NCCL, which this host lacks; what the other hosts have is not known here. Give --plain on "
            "(UNDERTOW_PLAIN=on) on all hosts to run it as a single-process script, or --plain off to show it RANK"
        )
    return Sight(
        True,
        f"{name} needs NCCL, which this host lacks: runs as a single-process script; --plain off shows it RANK",
    )


def has_nccl(environ: Mapping[str, str]) -> bool:
    """Whether torch could use NCCL on this host.

    Torch itself is not asked: the script may set variables before it imports torch.
    """
    is_barred = environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    return not is_barred and any(map(os.path.exists, _DRIVERS)) and _is_built_for_devices()


def _is_built_for_devices() -> bool:
    try:
        found = importlib.util.find_spec("torch")
        text = Path(found.origin or "torch").with_name("version.py").read_text() if found is not None else ""
    except (OSError, ValueError):
        return True  # a build that cannot be looked into
    return re.search(r"^(cuda|hip)\b[^=\n]*=\s*['\"]", text, re.MULTILINE) is not None
