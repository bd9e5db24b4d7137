"""Job files of `undertow share run`, in TOML.

In: files.  Out: `SharedJob`s, checked before anything is started; an error names the file and the key.

    script = "train.py"          # or module = "package.train"
    args = ["--epochs", "3"]
    n = 2                        # workers on this host
    weight = 2.0
    env = {OMP_NUM_THREADS = "1"}

The job runs in the file's folder, so relative paths start there.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from undertow import bounds
from undertow.crossover.arbiter_state import MOST_JOBS
from undertow.decoding import Decoder, Format, WrongSchema
from undertow.errors import ConfigError, Garbled
from undertow.launch.job import choose_master, read_job_settings

# Text that a command line and an environment can hold.
_Text = Annotated[str, Meta(pattern=r"^[^\x00]*$")]
_Variable = Annotated[str, Meta(pattern=r"^[^=\x00]+$")]
_Count = Annotated[int, Meta(ge=1)]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    script: _Text = ""
    module: _Text = ""
    args: list[_Text] = []
    n: _Count = 1
    nnodes: _Count = 1
    node_rank: Annotated[int, Meta(ge=0)] = 0
    master_addr: _Text | None = None
    master_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    name: Annotated[str, Meta(max_length=60)] = ""
    weight: float | None = None
    urgent: bool = False
    env: dict[_Variable, _Text] = {}


_files: Decoder[_File] = Decoder(_File, format=Format.TOML)


@dataclass(frozen=True, eq=False)
class SharedJob:
    """A job to be started together with others."""

    path: Path
    file: _File

    @property
    def name(self) -> str:
        return self.file.name or self.path.stem

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def command(self) -> list[str]:
        """Command line of the job's launcher."""
        file = self.file
        options = ["--share", "--share-name", self.name, "-n", str(file.n)]
        options += ["--nnodes", str(file.nnodes), "--node-rank", str(file.node_rank)]
        options += [] if file.master_addr is None else ["--master-addr", file.master_addr]
        options += [] if file.master_port is None else ["--master-port", str(file.master_port)]
        options += [] if file.weight is None else ["--weight", str(file.weight)]
        options += ["--urgent"] if file.urgent else []
        script = ["-m", "--", file.module] if file.module else ["--", str(self.folder / file.script)]
        return [sys.executable, "-m", "undertow", "run", *options, *script, *file.args]

    def make_environment(self, base: Mapping[str, str], socket: Path) -> dict[str, str]:
        """Return `base` plus the file's variables and the arbiter's socket."""
        made = {**base, **self.file.env, "UNDERTOW_SHARE_SOCKET": str(socket)}
        if made.get("PYTHONPATH"):  # relative to the user's current folder, not the job's
            made["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, made["PYTHONPATH"].split(os.pathsep)))
        return made


def read_jobs(paths: Sequence[Path], environ: Mapping[str, str]) -> list[SharedJob]:
    """Read one job from each file, and check that they can be started together."""
    if not 1 <= len(paths) <= MOST_JOBS:
        raise ConfigError(f"{len(paths)} jobs are not possible: at most {MOST_JOBS} can share a device")
    jobs = [_read(path) for path in paths]
    _refuse_duplicates("name", {job: job.name for job in jobs})
    _refuse_duplicates("master_port", {job: port for job in jobs if (port := _find_port(job, environ))})
    return jobs


def _read(path: Path) -> SharedJob:
    try:
        file = _files.decode(path.read_bytes())
        _check(file, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except WrongSchema as error:
        raise ConfigError(f"{path}: {_name_the_key(str(error))}") from None
    except Garbled as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    return SharedJob(path.absolute(), file)


def _check(file: _File, path: Path) -> None:
    """Check what the types of the fields cannot express."""
    if not (file.script or file.module):
        raise ConfigError(f"{path}: script: is missing: give a script or a module to run")
    if file.script and file.module:
        raise ConfigError(f"{path}: module: script is given as well: leave one of the two out")
    if file.script and not (path.parent / file.script).is_file():
        what = "is a folder" if (path.parent / file.script).is_dir() else "does not exist"
        raise ConfigError(f"{path}: script: {path.parent / file.script} {what}")
    if file.node_rank >= file.nnodes:
        raise ConfigError(f"{path}: node_rank: {file.node_rank} is outside of 0 to nnodes - 1, {file.nnodes - 1}")
    if file.weight is not None:
        bounds.WEIGHT.check(f"{path}: weight:", file.weight)
    bounds.WORKERS_PER_HOST.check(f"{path}: n:", file.n)
    bounds.NODES.check(f"{path}: nnodes:", file.nnodes)
    if not file.name.isprintable():
        raise ConfigError(f"{path}: name: {file.name!r} cannot be printed")


def _name_the_key(complaint: str) -> str:
    """Return the validator's message with the key first, named as in the file: n instead of $.n."""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", complaint):
        return f"{unknown[1]}: unknown key; known keys: {', '.join(_File.__struct_fields__)}"
    if found := re.fullmatch(r"Expected (.*) - at (.*)", complaint):
        what, where = (words.replace("`", "").replace(" | null", "") for words in found.groups())
        return f"{where.replace('$.', '')}: expected {what}"
    return complaint


def _find_port(job: SharedJob, environ: Mapping[str, str]) -> int:
    """Return the port of the job's rendezvous; 0 for any free port."""
    settings = read_job_settings({**environ, **job.file.env})
    return choose_master(settings, nnodes=job.file.nnodes, addr=None, port=job.file.master_port)[1]


def _refuse_duplicates(key: str, values: Mapping[SharedJob, object]) -> None:
    first: dict[object, SharedJob] = {}
    for job, value in values.items():
        other = first.setdefault(value, job)
        if other is not job:
            raise ConfigError(f"{job.path}: {key}: {value} is already used by {other.path}: give each job its own")
