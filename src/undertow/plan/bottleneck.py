"""The bandwidth that a network needs so that training does not wait for it: an estimate that can be checked by hand.

In: the number of parameters, the seconds of one iteration, the number of hosts.  Out: the rate in each direction, and a
verdict for every grade of Ethernet.
As in the example of Poseidon (ATC 2017), every host has a worker and 1/P of the parameters in its shard, and all
gradients are dense.  Rates are nominal, without latency and headers; `predict` is more exact.
"""

from __future__ import annotations

import enum

import msgspec

from undertow import bounds
from undertow.errors import ConfigError
from undertow.plan.scheme import count_dense_traffic

GRADES_GBIT = (1.0, 2.5, 5.0, 10.0, 25.0, 40.0, 50.0, 100.0)
# Share of an iteration: the backward pass multiplies twice, for the weights and for the inputs.
BACKWARD_SHARE = 2 / 3


class NetworkVerdict(enum.Enum):
    """Verdict on whether the best schedule can hide the network's time."""

    HIDDEN = "hidden"  # by the backward pass alone
    HIDDEN_BY_FORWARD = "hidden only with overlap into the next forward pass"
    LIMIT = "the limit"


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Iteration of one worker, and the number of hosts."""

    params: float
    iteration_s: float  # computation only
    hosts: int
    bytes_per_param: int = 4

    def __post_init__(self) -> None:
        if self.hosts < 2:
            raise ConfigError(f"--hosts {self.hosts}: a network needs at least two hosts")
        bounds.NUMBER_BYTES.check("--bytes-per-param", self.bytes_per_param)
        bounds.NODES.check("--hosts", self.hosts)


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Rate, in floats and in bits."""

    floats_per_s: float
    bits_per_s: float


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    """Grade of full-duplex Ethernet, and its effect on a workload."""

    gbit_per_s: float
    floats_per_s: float  # in each direction
    transfer_s: float  # time for the gradients of one iteration, in each direction
    share: float  # transfer time as a share of the iteration
    serial: float  # iteration as a multiple of compute, if communication starts after compute has ended
    bound: float  # iteration as a multiple of compute with perfect overlap; no schedule of dense gradients is faster
    verdict: NetworkVerdict


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """Rates at which one host sends and receives, their sum as in the paper, and all grades."""

    job: Workload
    made: Throughput  # gradients that one worker computes
    outgoing: Throughput
    incoming: Throughput
    both: Throughput
    grades: tuple[Grade, ...]

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def find_bottleneck(job: Workload) -> Bottleneck:
    """Return the rates that this workload needs, and a verdict for every grade of Ethernet."""
    made = job.params / job.iteration_s
    sent = count_dense_traffic(made, job.hosts)
    return Bottleneck(
        job=job,
        made=_flow(made, job),
        # Pushes to the other shards, (P-1)/P of all, and answers of this host's shard, 1/P to each of P-1 workers.
        outgoing=_flow(sent, job),
        # The same amounts: answers of the other shards, and pushes of the other workers.
        incoming=_flow(sent, job),
        both=_flow(2 * sent, job),
        grades=tuple(judge_grade(job, gbit) for gbit in GRADES_GBIT),
    )


def judge_grade(job: Workload, gbit_per_s: float) -> Grade:
    """Return the effect of a link of this speed on the workload."""
    floats_per_s = gbit_per_s * 1e9 / 8 / job.bytes_per_param
    transfer_s = count_dense_traffic(job.params, job.hosts) / floats_per_s
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


def _flow(floats_per_s: float, job: Workload) -> Throughput:
    return Throughput(floats_per_s=floats_per_s, bits_per_s=floats_per_s * job.bytes_per_param * 8)
