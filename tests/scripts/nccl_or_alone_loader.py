"""Regression with a DataLoader: distributed over NCCL if a launcher says so, one process else."""

import os

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def join():
    rank = os.environ.get("RANK")
    if rank is None or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return False
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl", init_method="env://")
    return True


def main():
    distributed = join()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(90, 4), torch.randn(90, 1))
    sampler = DistributedSampler(data) if distributed else None
    loader = DataLoader(data, batch_size=12, shuffle=sampler is None, sampler=sampler)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    if distributed:
        model = torch.nn.parallel.DistributedDataParallel(model.cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        if distributed:
            sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            x, y = data.tensors
            print(f"epoch {epoch} loss {torch.nn.functional.mse_loss(model(x), y):.6f}")


if __name__ == "__main__":
    main()
