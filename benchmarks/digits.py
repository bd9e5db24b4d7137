"""Compares undertow and torch's DistributedDataParallel on the digits example, in one run.

    undertow run -n 4 --quiet-ranks benchmarks/digits.py

Both train the same model on the same batches and take turns, block by block, so that a noisy
machine affects both.  After the first block their weights must agree.
"""

import argparse
import importlib.util
import statistics
import time
from pathlib import Path

import rich
import rich.table
import torch
import torch.distributed as dist

import undertow
import undertow.torch

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits.py"


def load_example():
    spec = importlib.util.spec_from_file_location("digits_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Trainer:
    """Model, optimizer and data of one system."""

    def __init__(self, model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, batch: int) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.images, self.labels, self.batch = images, labels, batch
        self.random = torch.Generator().manual_seed(undertow.rank())

    def run(self, steps: int) -> float:
        """Train this many steps on all ranks, and return the seconds."""
        undertow.barrier()
        started = time.perf_counter()
        for _ in range(steps):
            mine = torch.randint(len(self.labels), (self.batch,), generator=self.random)
            loss = torch.nn.functional.cross_entropy(self.model(self.images[mine]), self.labels[mine])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        undertow.barrier()
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="the first two warm up")
    parser.add_argument("--steps", type=int, default=40, help="steps per round and system")
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    options = parser.parse_args()

    torch.set_num_threads(1)
    undertow.init()
    dist.init_process_group("gloo")
    example = load_example()
    images, labels, *_ = example.load(seed=0)
    trainers = {}
    for name, wrap in (
        ("torch DDP, gloo", torch.nn.parallel.DistributedDataParallel),
        ("undertow", undertow.torch.DistributedDataParallel),
    ):
        torch.manual_seed(0)
        trainers[name] = Trainer(wrap(example.make_model()), images, labels, options.batch)

    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(options.rounds):
        for name in sorted(trainers, reverse=number % 2 == 0):
            seconds[name].append(trainers[name].run(options.steps))
        if number == 0:  # later, differences in the last bit have grown, as in any training
            for mine, other in zip(*(trainer.model.parameters() for trainer in trainers.values()), strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)
    if undertow.rank() == 0:
        reference = statistics.median(seconds["torch DDP, gloo"][2:])
        table = rich.table.Table(title=f"digits on {undertow.world_size()} workers, median of {options.rounds - 2}")
        for column in ("system", "ms per step", "fastest", "slowest", "speed relative to torch DDP"):
            table.add_column(column, justify="left" if column == "system" else "right")
        for name, values in seconds.items():
            kept = values[2:]
            row = (f"{value / options.steps * 1e3:.2f}" for value in (statistics.median(kept), min(kept), max(kept)))
            table.add_row(name, *row, f"{reference / statistics.median(kept):.2f}")
        rich.print(table)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
