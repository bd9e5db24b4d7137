"""Torch DDP on a replayed model, to check the bench itself: shares only the zoo's tables with it.

    sudo undertow lab run --hosts 4 --bandwidth 1gbit --quiet-ranks benchmarks/ddp_by_hand.py --scale 10

Compare with `undertow bench --hosts 4 --bandwidth 10gbit --scale 10 --systems ddp`: the lab does not scale its links,
so the bandwidth here is the bench's divided by the scale.
"""

import argparse
import itertools
import statistics
import time

import torch
import torch.distributed as dist

from undertow.tools.zoo import find_model


class Sleep(torch.autograd.Function):
    """Layer whose forward and backward end at times that were fixed when the step began."""

    @staticmethod
    def forward(ctx, x, layer, *parameters):
        ctx.layer = layer
        layer.clock.sleep(layer.forward_s)
        return x + 1

    @staticmethod
    def backward(ctx, gradient):
        ctx.layer.clock.sleep(2 * ctx.layer.forward_s)
        return gradient, None, *(torch.full_like(parameter, 1e-3) for parameter in ctx.layer.parameters())


class Timetable:
    """Schedule of a step: later operations make up for the lateness of earlier ones; waiting for others shifts it."""

    def __init__(self):
        self.due_s = time.perf_counter()

    def sleep(self, seconds):
        self.due_s += seconds
        time.sleep(max(0.0, self.due_s - time.perf_counter()))

    def restart(self):
        self.due_s = time.perf_counter()


class Layer(torch.nn.Module):
    def __init__(self, sizes, forward_s, clock):
        super().__init__()
        self.forward_s, self.clock = forward_s, clock
        self.tensors = torch.nn.ParameterList(torch.zeros(size) for size in sizes)

    def forward(self, x):
        return Sleep.apply(x, self, *self.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--scale", type=float, default=10)
    parser.add_argument("--steps", type=int, default=30, help="the first five warm up")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, clock = find_model(options.model), Timetable()
    layers = [
        Layer([max(1, round(t.size / options.scale)) for t in layer.tensors], model.forward_s * share, clock)
        for layer, share in zip(model.layers, model.shares, strict=True)
    ]
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=25 / options.scale)
    ends_s = []
    for _ in range(options.steps):
        clock.restart()  # the gradients have arrived: the next forward may start now
        wrapped(torch.zeros(1)).sum().backward()
        wrapped.zero_grad()
        dist.barrier()
        ends_s.append(time.perf_counter())
    steps_s = [after - before for before, after in itertools.pairwise(ends_s[4:])]
    if dist.get_rank() == 0:
        median_s = statistics.median(steps_s)
        print(f"{options.model}: {median_s * 1e3:.0f} ms per step, {median_s / model.iteration_s:.2f} times compute")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
