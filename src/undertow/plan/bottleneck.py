"""What a network must carry so that training does not wait for it: arithmetic for the back of an envelope.

In: parameters, seconds of one iteration, hosts.  Out: the rates in each direction, and what every grade of
Ethernet makes of them.
After the example of Poseidon (ATC 2017): every host has a worker and 1/P of the parameters in its shard, and all
gradients travel whole.  Nominal rates, no latency, no headers: `predict` knows better, this can be checked by hand.
"""

from __future__ import annotations

import enum

import msgspec

from undertow import bounds
from undertow.errors import ConfigError

GRADES_GBIT = (1.0, 2.5, 5.0, 10.0, 25.0, 40.0, 50.0, 100.0)
# Of an iteration; the backward pass multiplies twice, for the weights and for the inputs.
BACKWARD_SHARE = 2 / 3


class Verdict(enum.Enum):
    """What the best schedule can do about the network."""

    HIDDEN = "hidden"  # under the backward pass alone
    HIDDEN_BY_FORWARD = "hidden only with overlap into the next forward pass"
    LIMIT = "the limit"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration of one worker, and how many of them there are."""

    params: float
    iteration_s: float  # compute alone
    hosts: int
    bytes_per_param: int = 4

    def __post_init__(self) -> None:
        if self.hosts < 2:
            raise ConfigError(f"--hosts {self.hosts}: at least two are needed to have something to say to each other")
        bounds.NUMBER_BYTES.check("--bytes-per-param", self.bytes_per_param)
        bounds.NODES.check("--hosts", self.hosts)


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What passes in one second."""

    floats_per_s: float
    bits_per_s: float


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    """One speed of Ethernet, the same in each direction at once."""

    gbit_per_s: float
    floats_per_s: float  # that it carries each way
    transfer_s: float  # of one iteration's gradients, each way
    share: float  # of the iteration
    serial: float  # iteration as multiple of compute, if the network starts when compute has ended
    bound: float  # the same, if both overlap perfectly: no schedule of whole gradients is faster
    verdict: Verdict


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """The answer.  `outgoing` and `incoming` are of one host, and `both` is their sum, as the paper counts."""

    job: Job
    made: Flow  # gradients, by one worker
    outgoing: Flow
    incoming: Flow
    both: Flow
    grades: tuple[Grade, ...]

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def find_bottleneck(job: Job) -> Bottleneck:
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


def judge_grade(job: Job, gbit_per_s: float) -> Grade:
    """What a link of this speed makes of the job."""
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


def _judge(share: float) -> Verdict:
    if share <= BACKWARD_SHARE:
        return Verdict.HIDDEN
    return Verdict.HIDDEN_BY_FORWARD if share <= 1 else Verdict.LIMIT


def _find_remote(job: Job) -> float:
    """The share of the parameters that is in other hosts' shards."""
    return (job.hosts - 1) / job.hosts


def _flow(floats_per_s: float, job: Job) -> Flow:
    return Flow(floats_per_s=floats_per_s, bits_per_s=floats_per_s * job.bytes_per_param * 8)
