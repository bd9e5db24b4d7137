"""Other launchers are recognised by their variables, and the command to use instead is shown."""

from __future__ import annotations

import pytest

from undertow.errors import ConfigError
from undertow.runtime.foreign import refuse_hosts, refuse_processes

SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "4"}
SLURM_BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_RANK": "5"}
HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "1"}
POD = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
KUBEFLOW = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "auto"}
OWN_WORKER = {"RANK": "1", "WORLD_SIZE": "4", "UNDERTOW_RENDEZVOUS": "10.0.0.1:4000"}


@pytest.mark.parametrize(
    ("environ", "seen", "command"),
    [
        (
            SLURM,
            "SLURM_STEP_NUM_TASKS=8",
            "`srun --ntasks-per-node 1 bash -c 'undertow run --nnodes 4 --node-rank $SLURM_NODEID "
            "--master-addr $(scontrol show hostnames | head -n 1) --master-port 29500 -n 2 train.py'`",
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "1"},
            "SLURM_NTASKS=4",
            "`undertow run -n 4 train.py`",
        ),
        ({**SLURM_BATCH, "SLURM_JOB_NUM_NODES": "2"}, "SLURM_NTASKS=8", "undertow run --nnodes 2 "),
        (
            OPEN_MPI,
            "OMPI_COMM_WORLD_SIZE=8",
            "`mpirun --map-by ppr:1:node bash -c 'undertow run --nnodes 4 --node-rank $OMPI_COMM_WORLD_RANK "
            "--master-addr FIRST_HOST --master-port 29500 -n 2 train.py'`",
        ),
        (HYDRA, "PMI_SIZE=4", "`undertow run -n 4 train.py`"),
        ({**HYDRA, "MPI_LOCALNRANKS": "1"}, "PMI_SIZE=4", "`mpiexec -ppn 1 bash -c 'undertow run --nnodes 4 "),
        ({"PMIX_RANK": "2", "PMIX_SIZE": "3"}, "PMIX_SIZE=3", "`undertow run -n 3 train.py`"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "SLURM_NTASKS=2", "`undertow run -n 2 train.py`"),
        (SLURM_BATCH, "SLURM_NTASKS=8", "`undertow run -n 8 train.py`"),
        ({**SLURM_BATCH, "SLURM_PROCID": "1", "SLURM_JOB_NUM_NODES": "1"}, "SLURM_NTASKS=8", "undertow run -n 8 "),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_RANK=1", "undertow run -n 2 train.py"),
        ({"PMI_RANK": "1"}, "PMI_RANK=1", "undertow run -n 2 train.py"),
        ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}, "MPI_LOCALNRANKS=2", "undertow run -n 2 train.py"),
        ({"MPI_LOCALRANKID": "1"}, "MPI_LOCALRANKID=1", "undertow run -n 2 train.py"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK=1", "undertow run -n 2 train.py"),
        ({"MV2_COMM_WORLD_SIZE": "2"}, "MV2_COMM_WORLD_SIZE=2", "undertow run -n 2 train.py"),
        ({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"}, "HOROVOD_SIZE=2", "undertow run -n 2 train.py"),
        ({**KUBEFLOW, "PET_NNODES": "1:4"}, "PET_NNODES=1:4", "--nnodes 4 --node-rank $PET_NODE_RANK"),
        (KUBEFLOW, "PET_NNODES=2", "--nnodes 2 --node-rank $PET_NODE_RANK --master-addr $PET_MASTER_ADDR"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_a_process_of_another_launcher_is_refused(environ: dict[str, str], seen: str, command: str) -> None:
    for refuse in (lambda: refuse_processes(environ, script="train.py"), lambda: run_hosts(environ)):
        with pytest.raises(ConfigError) as caught:
            refuse()
        assert seen in str(caught.value)
        assert command in str(caught.value)
        assert "\n" not in str(caught.value)


def run_hosts(environ: dict[str, str], nproc: int | None = None) -> None:
    refuse_hosts(environ, script="train.py", nproc=nproc)


@pytest.mark.parametrize(
    ("environ", "seen", "command"),
    [
        (POD, "WORLD_SIZE=4", "`undertow run --nnodes 4 --node-rank $RANK -n 1 train.py`"),
        (
            {"RANK": "0", "WORLD_SIZE": "2"},
            "WORLD_SIZE=2",
            "--master-addr FIRST_HOST --master-port 29500 -n 1 train.py",
        ),
    ],
    ids=["pod", "pod-without-master"],
)
def test_a_host_of_another_launcher_is_refused(environ: dict[str, str], seen: str, command: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_hosts(environ)
    assert seen in str(caught.value)
    assert command in str(caught.value)
    refuse_processes(environ, script="train.py")  # its ranks are read


def test_the_requested_number_of_workers_is_in_the_command() -> None:
    with pytest.raises(ConfigError, match=r"-n 6 train\.py"):
        run_hosts(SLURM, nproc=6)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**SLURM_BATCH, "SLURM_JOB_NUM_NODES": "1"},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"},
        {"SLURM_NTASKS": "8", "SLURM_JOB_NUM_NODES": "4"},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"PMI_SIZE": "1"},
        {"PMIX_RANK": "0"},
        {"PMIX_SIZE": "2"},
        {"OMPI_COMM_WORLD_RANK": "0", "PMI_RANK": "0", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
        {"PMI_SIZE": "many"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {**SLURM, **OWN_WORKER},
        {**OPEN_MPI, **OWN_WORKER},
    ],
    ids=lambda environ: "+".join(environ) or "nothing",
)
def test_one_process_and_our_own_workers_are_not_refused(environ: dict[str, str]) -> None:
    refuse_processes(environ, script="train.py")
    run_hosts(environ)


def test_a_size_of_one_insists() -> None:
    refuse_processes({**SLURM, "WORLD_SIZE": "1"}, script="train.py")


@pytest.mark.parametrize("half", [{"RANK": "0"}, {"WORLD_SIZE": "8"}])
def test_half_of_what_is_read_is_not_enough(half: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="RANK and WORLD_SIZE are not both set"):
        refuse_processes({**SLURM, **half}, script="train.py")
    refuse_processes({**SLURM, "RANK": "3", "WORLD_SIZE": "8"}, script="train.py")
