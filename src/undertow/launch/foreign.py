"""Other launchers that started this process as one of several: recognised by their variables, and refused.

In: an environment.  Out: the launcher that was seen, and the command to type instead.
undertow does not take ranks from these launchers: each process would train alone, as rank 0 of 1.
Pure: reads only the mapping it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from undertow.bounds import read_count
from undertow.errors import ConfigError

_PORT = "--master-port 29500"


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """Another launcher: the variable by which it was seen, and what the command to type is made of."""

    name: str
    variable: str
    value: str
    hosts: int
    workers: int  # on each host
    node_rank: str = ""  # the variable with the number of a host, if each runs one process
    start: str = ""  # how it starts one process on each host; empty: it does so already
    master: str = f"--master-addr FIRST_HOST {_PORT}"

    def describe_command(self, *, script: str, nproc: int | None = None) -> str:
        """The command to type; with `nproc` workers on each host."""
        nproc = nproc or self.workers
        if self.hosts == 1:
            return f"`undertow run -n {nproc} {script}` in one process"
        master = f"{self.master} " if self.master else ""
        own = f"undertow run --nnodes {self.hosts} --node-rank ${self.node_rank} {master}-n {nproc} {script}"
        return f"`{self.start} bash -c '{own}'`" if self.start else f"`{own}`"


def find_process_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """The launcher that started this process as one of several, without setting RANK and WORLD_SIZE."""
    found = (_find_mpi(environ, kind) for kind in _MPI)
    return _find_slurm(environ) or next(filter(None, found), None) or _find_kubeflow(environ)


def find_host_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """The launcher that started `undertow run` several times; workers of our own launcher may start it themselves."""
    if environ.get("UNDERTOW_RENDEZVOUS"):
        return None
    return _find_kubeflow(environ) or _find_pod(environ) or find_process_launcher(environ)


def refuse_hosts(environ: Mapping[str, str], *, script: str, nproc: int | None) -> None:
    """Raise `ConfigError` where `undertow run` without --nnodes would start one job on each host."""
    launcher = find_host_launcher(environ)
    if launcher:
        raise ConfigError(
            f"{launcher.name} started this command as one of several ({launcher.variable}={launcher.value}): each "
            f"would train alone. Type {launcher.describe_command(script=script, nproc=nproc)}; --nnodes 1 insists"
        )


def refuse_processes(environ: Mapping[str, str], *, script: str) -> None:
    """Raise `ConfigError` where this process would be rank 0 of 1 only because no variable that we read says more."""
    is_told = environ.get("RANK") and environ.get("WORLD_SIZE")
    if is_told or environ.get("WORLD_SIZE") == "1" or environ.get("UNDERTOW_RENDEZVOUS"):
        return
    launcher = find_process_launcher(environ)
    if launcher:
        raise ConfigError(
            f"{launcher.name} started this process as one of several ({launcher.variable}={launcher.value}), but RANK "
            "and WORLD_SIZE are not both set: each would train alone. Type "
            f"{launcher.describe_command(script=script)}, or insist with WORLD_SIZE=1"
        )


def _find_slurm(environ: Mapping[str, str]) -> Launcher | None:
    variable = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    tasks, nodes = _read_count(environ, variable), _read_count(environ, "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES")
    # Without SLURM_PROCID this is no task: a shell of salloc has only the counts of its job.
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
    """Whether sbatch started it: a batch script is no task, Slurm runs it once, on the first node, as process 0."""
    is_step = bool(environ.get("SLURM_STEP_ID"))
    return not is_step and environ.get("SLURM_PROCID") == "0" and environ.get("SLURM_JOB_NUM_NODES") == "1"


@dataclass(frozen=True, kw_only=True)
class _Mpi:
    """A family of launchers and its variables; not every launcher of a family sets all of them."""

    name: str
    size: str
    local_size: str
    rank: str
    local_rank: str
    start: str
    is_sure: bool = True  # the size alone tells: no user sets it


_MPI = (
    _Mpi(
        name="mpirun (Open MPI)",
        size="OMPI_COMM_WORLD_SIZE",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        rank="OMPI_COMM_WORLD_RANK",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        start="mpirun --map-by ppr:1:node",
    ),
    _Mpi(
        name="mpiexec (MPICH, Intel MPI)",
        size="PMI_SIZE",
        local_size="MPI_LOCALNRANKS",
        rank="PMI_RANK",
        local_rank="MPI_LOCALRANKID",
        start="mpiexec -ppn 1",
    ),
    _Mpi(
        name="mpiexec (MVAPICH)",
        size="MV2_COMM_WORLD_SIZE",
        local_size="MV2_COMM_WORLD_LOCAL_SIZE",
        rank="MV2_COMM_WORLD_RANK",
        local_rank="MV2_COMM_WORLD_LOCAL_RANK",
        start="mpiexec -ppn 1",
    ),
    _Mpi(
        name="A PMIx launcher",
        size="PMIX_SIZE",
        local_size="PMIX_LOCAL_SIZE",
        rank="PMIX_RANK",
        local_rank="PMIX_LOCAL_RANK",
        start="prun --map-by ppr:1:node",
        is_sure=False,
    ),
    _Mpi(
        name="horovodrun",
        size="HOROVOD_SIZE",
        local_size="HOROVOD_LOCAL_SIZE",
        rank="HOROVOD_RANK",
        local_rank="HOROVOD_LOCAL_RANK",
        start="horovodrun -np HOSTS -H FIRST_HOST:1,...",
    ),
)


def _find_mpi(environ: Mapping[str, str], kind: _Mpi) -> Launcher | None:
    if not kind.is_sure and not environ.get(kind.rank):
        return None
    # A rank tells as well as a size: process 1 is not the only one.
    counts = {variable: _read_count(environ, variable) for variable in (kind.size, kind.local_size)}
    counts |= {variable: 1 + _read_count(environ, variable, default=0) for variable in (kind.rank, kind.local_rank)}
    variable = next((variable for variable, count in counts.items() if count > 1), None)
    if variable is None:
        return None
    processes = max(counts.values())
    workers = min(processes, _read_count(environ, kind.local_size, default=processes))
    return Launcher(
        name=kind.name,
        variable=variable,
        value=environ[variable],
        hosts=-(-processes // workers),
        workers=workers,
        node_rank=kind.rank,
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
    """A pod of a PyTorchJob: there RANK and WORLD_SIZE count pods."""
    pods = _read_count(environ, "WORLD_SIZE")
    if pods < 2:
        return None
    is_told = bool(environ.get("MASTER_ADDR"))  # read by `undertow run` itself
    return Launcher(
        name="A launcher of pods or processes",
        variable="WORLD_SIZE",
        value=environ["WORLD_SIZE"],
        hosts=pods,
        workers=1,
        node_rank="RANK",
        master="" if is_told else f"--master-addr FIRST_HOST {_PORT}",
    )


def _read_count(environ: Mapping[str, str], *variables: str, default: int = 1) -> int:
    """The first of these that is a positive number; of a range (1:4) the larger end."""
    texts = [environ.get(variable, "").rpartition(":")[2] for variable in variables]
    return next((count for count in map(read_count, texts) if count), default)
