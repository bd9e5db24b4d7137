"""Trains on scikit-learn's digits with Horovod's API; nothing in this script is specific to undertow.

undertow run -n 4 --quiet-ranks examples/horovod_digits.py
"""

import argparse

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def load() -> tuple[TensorDataset, TensorDataset]:
    """Return training and test images."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    return TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])


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


def count_right(model: torch.nn.Module, loader: DataLoader) -> float:
    """Return the fraction of images that all workers together recognise."""
    right = torch.zeros(2)
    with torch.no_grad():
        for images, labels in loader:
            right += torch.tensor([(model(images).argmax(1) == labels).sum().item(), len(labels)])
    right = hvd.allreduce(right, name="right", op=hvd.Sum)
    return (right[0] / right[1]).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    options = parser.parse_args()

    hvd.init()
    torch.manual_seed(hvd.rank())  # initial weights differ: rank 0's are sent to all
    training, test = load()
    sampler = DistributedSampler(training, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(training, batch_size=options.batch, sampler=sampler)
    test_sampler = DistributedSampler(test, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    test_loader = DataLoader(test, batch_size=120, sampler=test_sampler)

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        accuracy = count_right(model, test_loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: {accuracy:.1%} of the test images are recognised")


if __name__ == "__main__":
    main()
