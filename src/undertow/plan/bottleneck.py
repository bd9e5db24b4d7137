"""The bandwidth that a network needs so that training does not wait for it, estimated by hand.

In: parameters, seconds of one iteration, hosts.  Out: the rate in each direction, and a verdict for every grade of
Ethernet.
Follows the example of Poseidon (ATC 2017): every host has a worker and 1/P of the parameters in its shard, and all
gradients are dense.  Nominal rates, no latency, no headers: `predict` is more exact, this can be checked by hand.
"""

from __future__ import annotations

import enum

import msgspec

from undertow import bounds
from undertow.errors import ConfigError

GRADES_GBIT = (1.0, 2.5, 5.0, 10.0, 25.0, 40.0, 50.0, 100.0)
# Of an iteration; the backward pass multiplies twice, for the weights and for the inputs.
BACKWARD_SHARE = 2 / 3


class NetworkVerdict(enum.Enum):
    """Share of the network's time that the best schedule can hide."""

    HIDDEN = "hidden"  # under the backward pass alone
    HIDDEN_BY_FORWARD = "hidden only with overlap into the next forward pass"
    LIMIT = "the limit"


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Iteration of one worker, and the number of hosts."""

    params: float
    iteration_s: float  # compute alone
    hosts: int
    bytes_per_param: int = 4

    def __post_init__(self) -> None:
        if self.hosts < 2:
            raise ConfigError(f"--hosts {self.hosts}: a network needs at least two")
        bounds.NUMBER_BYTES.check("--bytes-per-param", self.bytes_per_param)
        bounds.NODES.check("--hosts", self.hosts)


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Rate, in numbers and in bits."""

    floats_per_s: float
    bits_per_s: float


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    """Speed of full-duplex Ethernet, and its effect on a workload."""

    gbit_per_s: float
    floats_per_s: float  # each way
    transfer_s: float  # of one iteration's gradients, each way
    share: float  # of the iteration
    serial: float  # iteration as a multiple of compute, if communication starts when compute has ended
    bound: float  # as a multiple of compute, if both overlap perfectly: no schedule of dense gradients is faster
    verdict: NetworkVerdict


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """Rates that one host sends and receives, their sum as the paper counts it, and all grades."""

    job: Workload
    made: Throughput  # gradients, by one worker
    outgoing: Throughput
    incoming: Throughput
    both: Throughput
    grades: tuple[Grade, ...]

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def find_bottleneck(job: Workload) -> Bottleneck:
    """Return the rates that this workload needs, and a verdict for every grade of Ethernet."""
    made = job.params / job.iteration_s
    return Bottleneck(
        job=job,
        made=_flow(made, job),
        # Pushes to the other shards, (P-1)/P of all, and answers of the own shard, 1/P to each of P-1 workers.
        outgoing=_flow(2 * _find_remote(job) * made, job),
        # The mirror image: the answers of the other shards, and the pushes of the other workers.
        incoming=_flow(2 * _find_remote(job) * made, job),
        both=_flow(4 * _find_remote(job) * made, job),
        grades=tuple(judge_grade(job, gbit) for gbit in GRADES_GBIT),
    )


def judge_grade(job: Workload, gbit_per_s: float) -> Grade:
    """Return how a link of this speed does with the workload."""
    floats_per_s = gbit_per_s * 1e9 / 8 / job.bytes_per_param
    transfer_s = 2 * _find_remote(job) * job.params / floats_per_s
    share = transfer_s / job.iteration_s
    return Grade(
        gbit_per_s=gbit_per_s,
        floats_per_s=floats_per_s,
        transfer_s=transfer_s,
        share=share,
        serial=1 + share,
        bound=max(1.0, share),
        verdict=_judge(share),
    )


def _judge(share: float) -> NetworkVerdict:
    if share <= BACKWARD_SHARE:
        return NetworkVerdict.HIDDEN
    return NetworkVerdict.HIDDEN_BY_FORWARD if share <= 1 else NetworkVerdict.LIMIT


def _find_remote(job: Workload) -> float:
    """Return the share of the parameters that other hosts' shards own."""
    return (job.hosts - 1) / job.hosts


def _flow(floats_per_s: float, job: Workload) -> Throughput:
    return Throughput(floats_per_s=floats_per_s, bits_per_s=floats_per_s * job.bytes_per_param * 8)
