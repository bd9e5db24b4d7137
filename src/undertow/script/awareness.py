"""Does a script know that it is one of several?  Then it is left to do what it does.

In: the script's text, before it runs; the state of the process, when it makes its first optimizer.
Out: yes or no.  The text gives a first guess, on which nothing hangs but who prints what until then, and whether
random numbers are the same everywhere; what the process has done by then decides.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from undertow.runtime.torch_groups import has_group_of_one, has_process_group

# Words of scripts that know: ranks, process groups, and the frameworks that make them.
_KNOWING = re.compile(
    rb"\b(RANK|LOCAL_RANK|WORLD_SIZE|world_size|local_rank|torch\.distributed|init_process_group"
    rb"|DistributedDataParallel|DistributedSampler|horovod|hvd|undertow|accelerate|Accelerator|deepspeed|lightning"
    rb"|pytorch_lightning|torchelastic|mpi4py|HOROVOD_(?:LOCAL_|CROSS_)?(?:RANK|SIZE))\b"
)
_HOROVOD = re.compile(rb"\bhorovod\b|\bHOROVOD_")

# What somebody means to do one day is not what the script does.
_COMMENT = re.compile(rb"(?:^|\s)#.*$", re.MULTILINE)


def speaks_of_ranks(script: str | None) -> bool:
    """By its text.  Of one that cannot be read nothing is assumed."""
    text = _read_text(script)
    return text is None or _KNOWING.search(text) is not None


def speaks_of_horovod(script: str | None) -> bool:
    """By its text."""
    return _HOROVOD.search(_read_text(script) or b"") is not None


def _read_text(script: str | None) -> bytes | None:
    """Without its comments; None if it cannot be read."""
    try:
        return None if script is None else _COMMENT.sub(b"", Path(script).read_bytes())
    except OSError:
        return None


def find_text(module: str) -> str | None:
    """The file of a module that is the user's own, without importing anything; None if it is somewhere else."""
    path = os.path.join(os.getcwd(), *module.split("."))
    return next((file for file in (f"{path}.py", os.path.join(path, "__main__.py")) if os.path.isfile(file)), None)


def knows_of_ranks() -> bool:
    """By what it has done: it has joined the others.

    An import alone is no sign: libraries try `import horovod.torch` to see whether it is there.
    """
    return _has_undertow() or find_join() is not None


def find_join() -> str | None:
    """The call by which it has joined the others without undertow, if any."""
    return "init_process_group" if has_process_group() else "hvd.init()" if _has_horovod() else None


def is_alone() -> bool:
    """Whether all that it has joined is a process group of its own process, as some libraries ask for one."""
    return has_group_of_one() and not _has_undertow() and not _has_horovod()


def _has_undertow() -> bool:
    process = sys.modules.get("undertow.runtime.process")
    return process is not None and bool(process.is_initialized())


def _has_horovod() -> bool:
    """Whether Horovod itself is initialised."""
    module = sys.modules.get("horovod.torch")
    is_initialized = getattr(module, "is_initialized", None)
    if is_initialized is None or module is sys.modules.get("undertow.horovod.torch"):
        return False  # undertow's module by that name: it has joined if undertow has
    try:
        return bool(is_initialized())
    except Exception:
        return False  # a Horovod that was built without torch
