"""A job of `undertow share run` as people write it down, in a file of TOML.

In: files.  Out: `SharedJob`s, checked before anything is started; what is wrong with a file is said by name and key.

    script = "train.py"          # or module = "package.train"
    args = ["--epochs", "3"]
    n = 2                        # workers on this host
    weight = 2.0
    env = {OMP_NUM_THREADS = "1"}

The job runs in the file's folder, so relative paths are meant from there.
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
from undertow.core.decoding import Decoder, Format, WrongSchema
from undertow.crossover.office import MOST_JOBS
from undertow.errors import ConfigError, Garbled
from undertow.launch.job import choose_master, read_job_settings

# What a command line and an environment can hold.
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
    """One job that is started beside others."""

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
        """The launcher's command line."""
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
        """The user's with the file's on top; the arbiter is the same for all."""
        made = {**base, **self.file.env, "UNDERTOW_SHARE_SOCKET": str(socket)}
        if made.get("PYTHONPATH"):  # meant from where the user stands, not from the job's folder
            made["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, made["PYTHONPATH"].split(os.pathsep)))
        return made


def read_jobs(paths: Sequence[Path], environ: Mapping[str, str]) -> list[SharedJob]:
    """Of one file each, ready to be started together."""
    if not 1 <= len(paths) <= MOST_JOBS:
        raise ConfigError(f"{len(paths)} jobs are not possible: at most {MOST_JOBS} share a device")
    jobs = [_read(path) for path in paths]
    _refuse_twins("name", {job: job.name for job in jobs})
    _refuse_twins("master_port", {job: port for job in jobs if (port := _find_port(job, environ))})
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
        raise ConfigError(f"{path}: is no TOML: {error}") from None
    return SharedJob(path.absolute(), file)


def _check(file: _File, path: Path) -> None:
    """What no type can say."""
    if not (file.script or file.module):
        raise ConfigError(f"{path}: script: is missing: say what to run, or give a module")
    if file.script and file.module:
        raise ConfigError(f"{path}: module: there is a script as well: leave one of them out")
    if file.script and not (path.parent / file.script).is_file():
        what = "is a folder" if (path.parent / file.script).is_dir() else "is not there"
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
    """The validator's words, the key first: what it calls $.n is n to whoever wrote the file."""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", complaint):
        return f"{unknown[1]}: is not known; known are {', '.join(_File.__struct_fields__)}"
    if found := re.fullmatch(r"Expected (.*) - at (.*)", complaint):
        what, where = (part.replace("`", "").replace(" | null", "") for part in found.groups())
        return f"{where.replace('$.', '')}: expected {what}"
    return complaint


def _find_port(job: SharedJob, environ: Mapping[str, str]) -> int:
    """Where its first worker will wait; 0 for any free port."""
    settings = read_job_settings({**environ, **job.file.env})
    return choose_master(settings, nnodes=job.file.nnodes, addr=None, port=job.file.master_port)[1]


def _refuse_twins(key: str, values: Mapping[SharedJob, object]) -> None:
    first: dict[object, SharedJob] = {}
    for job, value in values.items():
        other = first.setdefault(value, job)
        if other is not job:
            raise ConfigError(f"{job.path}: {key}: {value} is that of {other.path} already: give each its own")
