"""A classifier, trained with DistributedDataParallel as the tutorials have it."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def load_data():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(1200, 32, generator=generator)
    y = (x @ torch.randn(32, 10, generator=generator)).argmax(1)
    return TensorDataset(x[:960], y[:960]), TensorDataset(x[960:], y[960:])


def evaluate(model, loader, criterion):
    """Each rank computes its part of the test data."""
    model.eval()
    sums = torch.zeros(3)
    with torch.no_grad():
        for x, y in loader:
            outputs = model(x)
            sums += torch.tensor([criterion(outputs, y).item() * len(y), (outputs.argmax(1) == y).sum(), len(y)])
    dist.all_reduce(sums, op=dist.ReduceOp.SUM)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=48, help="of all workers together")
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size, local_rank = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
    torch.manual_seed(1 + rank)

    train, test = load_data()
    sampler = DistributedSampler(train, num_replicas=world_size, rank=rank, shuffle=True, seed=3)
    loader = DataLoader(train, batch_size=args.batch_size // world_size, sampler=sampler)
    test_sampler = DistributedSampler(test, shuffle=False, drop_last=True)
    test_loader = DataLoader(test, batch_size=100, sampler=test_sampler)

    torch.manual_seed(1)
    model = DDP(nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        loss, accuracy = evaluate(model, test_loader, criterion)
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.6f} accuracy {accuracy:.3f}", flush=True)

        if rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.checkpoint)
        dist.barrier()
        saved = torch.load(args.checkpoint, map_location={"cuda:0": f"cuda:{local_rank}"})
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dist.barrier()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
