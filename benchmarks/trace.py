"""Measures what a trace costs: the same training with and without it, block by block, in one run.

    undertow run -n 2 --quiet-ranks --trace /tmp/trace --trace-steps all benchmarks/trace.py
    sudo undertow lab run --hosts 4 --bandwidth 1gbit --trace /tmp/trace --trace-steps all benchmarks/trace.py

Recording is switched off and on between blocks; the hooks stay, as in any recorded run.  Blocks alternate, so that a
noisy machine affects both kinds.  With `--without-hooks`, and without --trace, nothing is ever switched on: compare
with the other run to see what the hooks alone cost.
"""

import argparse
import statistics
import time

import torch

import undertow
import undertow.torch
from undertow.tracing.recorder import process_recorder

MODELS = {
    "stack": lambda: torch.nn.Sequential(
        *(part for _ in range(8) for part in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())), torch.nn.Linear(1024, 10)
    ),
    # Many small layers: as many events as possible for a step that is as short as possible.
    "deep": lambda: torch.nn.Sequential(
        *(part for _ in range(60) for part in (torch.nn.Linear(256, 256), torch.nn.ReLU())), torch.nn.Linear(256, 10)
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="stack")
    parser.add_argument("--batch", type=int, default=64, help="samples per worker and step")
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each kind; the first warms up")
    parser.add_argument("--steps", type=int, default=30, help="steps per block")
    parser.add_argument("--overlap", action="store_true", help="parallelize instead of DistributedDataParallel")
    parser.add_argument("--without-hooks", action="store_true")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    undertow.init()
    assert process_recorder.is_on is not options.without_hooks, "give --trace DIR --trace-steps all, or --without-hooks"
    model = MODELS[options.model]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    if options.overlap:
        model, optimizer = undertow.torch.parallelize(model, optimizer)
    else:
        model = undertow.torch.DistributedDataParallel(model)
    width = next(model.parameters()).shape[1]
    inputs, labels = torch.randn(options.batch, width), torch.randint(10, (options.batch,))

    def run(is_on: bool) -> tuple[float, float]:
        """Return the milliseconds of a step, and its processor time, which a busy machine disturbs less."""
        undertow.torch.flush(model)
        undertow.barrier()
        time.sleep(0.6)  # until earlier events are written
        process_recorder.is_on = is_on
        undertow.barrier()
        started_s, used_s = time.perf_counter(), time.process_time()
        for _ in range(options.steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        undertow.torch.flush(model)
        undertow.barrier()
        spent_s = time.perf_counter() - started_s, time.process_time() - used_s
        return 1000 * spent_s[0] / options.steps, 1000 * spent_s[1] / options.steps

    kinds = [False] if options.without_hooks else [False, True]
    blocks = [{is_on: run(is_on) for is_on in kinds} for _ in range(options.rounds)][1:]
    if undertow.rank() == 0:
        for which, what in enumerate(("a step", "its processor time")):
            off = statistics.median(block[False][which] for block in blocks)
            print(f"{options.model}, {what}: {off:.2f} ms without recording", end="", flush=True)
            if not options.without_hooks:
                on = statistics.median(block[True][which] for block in blocks)
                ratios = sorted(block[True][which] / block[False][which] - 1 for block in blocks)
                print(f", {on:.2f} with, {statistics.median(ratios):+.2%} ", end="")
                print(f"({ratios[0]:+.2%} to {ratios[-1]:+.2%})", end="")
            print(flush=True)


if __name__ == "__main__":
    main()
