"""Refusal of launchers that start several processes and whose ranks undertow does not read.

In: an environment.  Out: the launcher, which is recognised by its variables, and the command to use instead.
Without the refusal each process would train alone, as rank 0 of 1.
Pure: reads only the given mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from undertow.bounds import read_count
from undertow.errors import ConfigError
from undertow.settings import is_given

_PORT = "--master-port 29500"


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """Another launcher: the variable by which it was recognised, and the parts of the command to use instead."""

    name: str
    variable: str
    value: str
    hosts: int
    workers: int  # on each host
    node_rank: str = ""  # variable with the number of the host, if each host runs one process
    start: str = ""  # command that starts one process on each host; empty if the launcher does so already
    master: str = f"--master-addr FIRST_HOST {_PORT}"

    def describe_command(self, *, script: str, nproc: int | None = None) -> str:
        """Return the command to use instead, with `nproc` workers on each host."""
        nproc = nproc or self.workers
        if self.hosts == 1:
            return f"`undertow run -n {nproc} {script}` in one process"
        master = f"{self.master} " if self.master else ""
        own = f"undertow run --nnodes {self.hosts} --node-rank ${self.node_rank} {master}-n {nproc} {script}"
        return f"`{self.start} bash -c '{own}'`" if self.start else f"`{own}`"


def find_process_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """Find the launcher that started this process as one of several, without setting RANK and WORLD_SIZE."""
    found = (_find_mpi(environ, kind) for kind in _MPI)
    return _find_slurm(environ) or next(filter(None, found), None) or _find_kubeflow(environ)


def find_host_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """Find the launcher that started `undertow run` several times, unless workers of our own launcher did."""
    if is_given("rendezvous", environ):
        return None
    return _find_kubeflow(environ) or _find_pod(environ) or find_process_launcher(environ)


def refuse_hosts(environ: Mapping[str, str], *, script: str, nproc: int | None) -> None:
    """Raise `ConfigError` if `undertow run` without --nnodes would start one job on each host."""
    launcher = find_host_launcher(environ)
    if launcher:
        raise ConfigError(
            f"{launcher.name} started this command as one of several ({launcher.variable}={launcher.value}): each "
            f"would train alone. Use {launcher.describe_command(script=script, nproc=nproc)}, or give --nnodes 1 to "
            "train alone"
        )


def refuse_processes(environ: Mapping[str, str], *, script: str) -> None:
    """Raise `ConfigError` if this process would be rank 0 of 1 because its launcher sets no variable that we read."""
    has_rank = environ.get("RANK") and environ.get("WORLD_SIZE")
    if has_rank or environ.get("WORLD_SIZE") == "1" or is_given("rendezvous", environ):
        return
    launcher = find_process_launcher(environ)
    if launcher:
        raise ConfigError(
            f"{launcher.name} started this process as one of several ({launcher.variable}={launcher.value}), but RANK "
            "and WORLD_SIZE are not both set: each would train alone. Use "
            f"{launcher.describe_command(script=script)}, or set WORLD_SIZE=1 to train alone"
        )


def _find_slurm(environ: Mapping[str, str]) -> Launcher | None:
    variable = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    tasks, nodes = _read_count(environ, variable), _read_count(environ, "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES")
    # Without SLURM_PROCID this is no task: a shell opened by salloc has only the counts of its job.
    if not environ.get("SLURM_PROCID") or tasks < 2 or _is_batch_script_of_one_node(environ):
        return None
    return Launcher(
        name="Slurm",
        variable=variable,
        value=environ[variable],
        hosts=nodes,
        workers=max(1, tasks // nodes),
        node_rank="SLURM_NODEID",
        start="srun --ntasks-per-node 1",
        master=f"--master-addr $(scontrol show hostnames | head -n 1) {_PORT}",
    )


def _is_batch_script_of_one_node(environ: Mapping[str, str]) -> bool:
    """Whether this is a batch script on one node, which Slurm runs once, as process 0, and not as a task."""
    is_step = bool(environ.get("SLURM_STEP_ID"))
    return not is_step and environ.get("SLURM_PROCID") == "0" and environ.get("SLURM_JOB_NUM_NODES") == "1"


@dataclass(frozen=True)
class _Mpi:
    """Family of launchers and its variables, not all of which every launcher sets."""

    name: str
    start: str
    prefix: str  # prefix of its variables
    local_size: str = ""  # variable of the local size, if it does not have this prefix
    local_rank: str = ""
    is_sure: bool = True  # the size alone is proof, because no user sets it

    @property
    def variables(self) -> tuple[str, str, str, str]:
        """Variables of the size, the local size, the rank and the local rank."""
        return (
            f"{self.prefix}_SIZE",
            self.local_size or f"{self.prefix}_LOCAL_SIZE",
            f"{self.prefix}_RANK",
            self.local_rank or f"{self.prefix}_LOCAL_RANK",
        )


_MPI = (
    _Mpi("mpirun (Open MPI)", "mpirun --map-by ppr:1:node", "OMPI_COMM_WORLD"),
    _Mpi("mpiexec (MPICH, Intel MPI)", "mpiexec -ppn 1", "PMI", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    _Mpi("mpiexec (MVAPICH)", "mpiexec -ppn 1", "MV2_COMM_WORLD"),
    _Mpi("A PMIx launcher", "prun --map-by ppr:1:node", "PMIX", is_sure=False),
    _Mpi("horovodrun", "horovodrun -np HOSTS -H FIRST_HOST:1,...", "HOROVOD"),
)


def _find_mpi(environ: Mapping[str, str], kind: _Mpi) -> Launcher | None:
    size, local_size, rank, local_rank = kind.variables
    if not kind.is_sure and not environ.get(rank):
        return None
    # A rank also proves a size: beside process 1 there is a process 0.
    counts = {variable: _read_count(environ, variable) for variable in (size, local_size)}
    counts |= {variable: 1 + _read_count(environ, variable, default=0) for variable in (rank, local_rank)}
    variable = next((variable for variable, count in counts.items() if count > 1), None)
    if variable is None:
        return None
    processes = max(counts.values())
    workers = min(processes, _read_count(environ, local_size, default=processes))
    return Launcher(
        name=kind.name,
        variable=variable,
        value=environ[variable],
        hosts=-(-processes // workers),
        workers=workers,
        node_rank=rank,
        start=kind.start,
    )


def _find_kubeflow(environ: Mapping[str, str]) -> Launcher | None:
    hosts = _read_count(environ, "PET_NNODES")
    if hosts < 2:
        return None
    return Launcher(
        name="Kubeflow",
        variable="PET_NNODES",
        value=environ["PET_NNODES"],
        hosts=hosts,
        workers=_read_count(environ, "PET_NPROC_PER_NODE"),
        node_rank="PET_NODE_RANK",
        master="--master-addr $PET_MASTER_ADDR --master-port $PET_MASTER_PORT",
    )


def _find_pod(environ: Mapping[str, str]) -> Launcher | None:
    """Find the launcher of a PyTorchJob, whose RANK and WORLD_SIZE count pods."""
    pods = _read_count(environ, "WORLD_SIZE")
    if pods < 2:
        return None
    has_master = bool(environ.get("MASTER_ADDR"))  # read by `undertow run`
    return Launcher(
        name="A launcher of pods or processes",
        variable="WORLD_SIZE",
        value=environ["WORLD_SIZE"],
        hosts=pods,
        workers=1,
        node_rank="RANK",
        master="" if has_master else f"--master-addr FIRST_HOST {_PORT}",
    )


def _read_count(environ: Mapping[str, str], *variables: str, default: int = 1) -> int:
    """Return the first of these variables that is a positive number.  Of a range (1:4) the larger end is taken."""
    texts = [environ.get(variable, "").rpartition(":")[2] for variable in variables]
    return next((count for count in map(read_count, texts) if count), default)
