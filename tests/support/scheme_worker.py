"""A worker that trains under one scheme after the other, because each process has to import torch.

    python -m tests.support.scheme_worker

In: a `Job` on stdin for every scheme, and an empty line when its warm-up has been seen.
Out: an empty line after the warm-up, then a lap.
"""

from __future__ import annotations

import os
import sys

import msgspec
from torch import nn
from torch.optim import Optimizer

from undertow.tools.lab.bench.messages import Assignment
from undertow.tools.lab.bench.worker import Trainer, _take_stdout, make_workload
from undertow.tools.lab.systems.undertow import Undertow
from undertow.torch import parallelize


class Job(msgspec.Struct, frozen=True, kw_only=True):
    assignment: Assignment
    plan: str
    warm_up_steps: int
    steps: int


class Planned(Undertow):
    """With a plan of the caller's choice."""

    plan = ""

    def wrap(self, model: nn.Module, optimizer: Optimizer, *, scale: float) -> tuple[nn.Module, Optimizer]:
        self._model, optimizer = parallelize(model, optimizer, separable=True, plan=self.plan)
        return self._model, optimizer


def main() -> None:
    replies, system, rank = _take_stdout(), Planned(), int(os.environ["RANK"])
    system.join()
    while line := sys.stdin.buffer.readline():
        job = msgspec.json.decode(line, type=Job)
        system.plan, what = job.plan, job.assignment
        workload = make_workload(what.model, rank=rank, scale=what.scale, slowdown=what.slowdown, batch=what.batch)
        trainer = Trainer(workload, system, rank=rank, scale=what.scale)
        trainer.run(job.warm_up_steps)
        replies.write(b"\n")
        replies.flush()
        sys.stdin.buffer.readline()
        replies.write(msgspec.json.encode(trainer.run(job.steps)) + b"\n")
        replies.flush()
    system.leave()


if __name__ == "__main__":
    main()
    os._exit(0)  # to take torch apart in order would cost another second
