"""Trains a small network on scikit-learn's digits, on any number of workers.

undertow run -n 4 --quiet-ranks examples/digits.py
torchrun --nproc-per-node 4 examples/digits.py
python examples/digits.py
"""

import argparse
import time

import rich.progress
import rich.table
import torch
from sklearn.datasets import load_digits

import undertow
import undertow.torch


def load(seed: int) -> tuple[torch.Tensor, ...]:
    """Return training and test images and labels, the same on all ranks."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return images[order[:1437]], labels[order[:1437]], images[order[1437:]], labels[order[1437:]]


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 16, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    undertow.init()
    rank, workers = undertow.rank(), undertow.world_size()
    torch.manual_seed(options.seed + rank)  # initial weights may differ: rank 0's are sent to all

    train_images, train_labels, test_images, test_labels = load(options.seed)
    model = undertow.torch.DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    steps_per_epoch = len(train_labels) // (options.batch * workers)
    started = time.perf_counter()
    with rich.progress.Progress(disable=rank != 0) as progress:
        bar = progress.add_task(f"training on {workers} workers", total=options.epochs * steps_per_epoch)
        for epoch in range(options.epochs):
            order = torch.randperm(len(train_labels), generator=torch.Generator().manual_seed(epoch))
            for step in range(steps_per_epoch):
                batch = order[step * options.batch * workers : (step + 1) * options.batch * workers]
                mine = batch[rank::workers]
                loss = torch.nn.functional.cross_entropy(model(train_images[mine]), train_labels[mine])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                progress.update(bar, advance=1)
    seconds = time.perf_counter() - started

    with torch.no_grad():
        accuracy = (model.module(test_images).argmax(1) == test_labels).float().mean().item()
    digest = undertow.torch.verify_replicas(model)  # raises DriftError if any bit differs on any rank
    if rank == 0:
        table = rich.table.Table(title="digits")
        table.add_column("result")
        table.add_column("value", justify="right")
        samples = options.epochs * steps_per_epoch * options.batch * workers
        table.add_row("accuracy on the test images", f"{accuracy:.1%}")
        table.add_row("samples/s, all workers", f"{samples / seconds:,.0f}")
        table.add_row("bytes sent by rank 0", f"{undertow.bytes_sent():,}")
        table.add_row("replicas", f"bit-identical on {workers} workers ({digest})")
        rich.print(table)
    undertow.shutdown()


if __name__ == "__main__":
    main()
