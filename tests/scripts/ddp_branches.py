"""Trains alone or under a launcher, whichever it finds, a model that does not use all of itself for every input."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", "--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--batch-size", type=int, default=8, help="of all workers together")
parser.add_argument("--lr", type=float, default=0.05)


class Routed(nn.Module):
    """Samples that begin with a large number, about one in eight, take another way."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.usual = nn.Linear(32, 32)
        self.rare = nn.Linear(32, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        h = torch.tanh(self.embed(x))
        is_rare = x[:, 0] > 1.15
        out = torch.empty_like(h)
        if is_rare.any():
            out[is_rare] = self.rare(h[is_rare])
        if not is_rare.all():
            out[~is_rare] = self.usual(h[~is_rare])
        return self.head(torch.tanh(out)).squeeze(1)


@record
def main():
    args = parser.parse_args()
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    is_distributed = args.local_rank != -1 and world_size > 1
    if is_distributed:
        dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo", init_method="env://")
    rank = dist.get_rank() if is_distributed else 0

    generator = torch.Generator().manual_seed(5)
    x = torch.randn(512, 16, generator=generator)
    y = torch.where(x[:, 0] > 1.15, x[:, 1] - x[:, 2], x[:, 3] * x[:, 4])

    torch.manual_seed(0)
    model = Routed()
    if is_distributed:
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    plain_model = model.module if hasattr(model, "module") else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for step in range(args.steps):
        batch = torch.randint(0, 384, (args.batch_size,), generator=generator)[rank::world_size]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        if step % 10 == 9 and rank == 0:
            plain_model.eval()
            with torch.no_grad():
                loss = nn.functional.mse_loss(plain_model(x[384:]), y[384:])
            plain_model.train()
            print(f"step {step} loss {loss.item():.6f}", flush=True)

    if is_distributed:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
