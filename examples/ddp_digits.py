"""Trains a small network on scikit-learn's digits with torch's DistributedDataParallel.

Nothing in this script is specific to undertow.  Both commands train the same model, the second with undertow's engine:

torchrun --nproc-per-node 4 examples/ddp_digits.py
undertow run -n 4 --quiet-ranks examples/ddp_digits.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split


def load(seed: int) -> list[torch.utils.data.Subset]:
    """Return training and test images, the same on all ranks."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    return random_split(data, [1437, 360], generator=torch.Generator().manual_seed(seed))


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 16, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def evaluate(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Return loss and accuracy on the test images, which are divided among the ranks."""
    model.eval()
    sums = torch.zeros(3)
    with torch.no_grad():
        for images, labels in loader:
            outputs = model(images)
            loss = nn.functional.cross_entropy(outputs, labels, reduction="sum")
            sums += torch.stack([loss, (outputs.argmax(1) == labels).sum(), torch.tensor(len(labels))])
    dist.all_reduce(sums)
    return sums[0].item() / sums[2].item(), sums[1].item() / sums[2].item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed + rank)

    train, test = load(options.seed)
    sampler = DistributedSampler(train, seed=options.seed)
    loader = DataLoader(train, batch_size=options.batch, sampler=sampler)
    test_loader = DataLoader(test, batch_size=60, sampler=DistributedSampler(test, shuffle=False))

    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(options.epochs):
        started = time.perf_counter()
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        seconds = time.perf_counter() - started
        loss, accuracy = evaluate(model, test_loader)
        if rank == 0:
            speed = len(sampler) * workers / seconds
            print(f"epoch {epoch} loss {loss:.6f} accuracy {accuracy:.1%} {speed:,.0f} samples/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
