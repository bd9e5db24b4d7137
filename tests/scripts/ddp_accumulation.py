"""Gradient accumulation with no_sync, in mixed precision, with clipping and a learning rate that goes up and down."""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch.nn.parallel.distributed

STEPS = 12
MICRO_BATCH = 16
MICRO_BATCHES = 8  # in one step, on all workers together


def make_micro_batch(step, index):
    """The same numbers whoever asks for them."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    x = torch.randn(MICRO_BATCH, 1, 8, 8, generator=generator)
    return x, x[:, 0, :4].sum((1, 2)).gt(0).long()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8 * 16, 2)

    def forward(self, x):
        h = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.head(h.flatten(1))


def main():
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert MICRO_BATCHES % world_size == 0
    accumulation = MICRO_BATCHES // world_size

    torch.manual_seed(rank)  # DDP sends the weights of rank 0 to the others
    model = torch.nn.parallel.distributed.DistributedDataParallel(Net(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=STEPS)
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    for step in range(STEPS):
        model.train()
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros(())
        for micro in range(accumulation):
            x, y = make_micro_batch(step, rank * accumulation + micro)
            is_last = micro == accumulation - 1
            with nullcontext() if is_last else model.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(x), y) / accumulation
                scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item() / world_size:.6f} norm {norm.item():.4f}", flush=True)

    # Statistics of the batches of rank 0, which all ranks have.
    model.eval()
    with torch.no_grad():
        x, y = make_micro_batch(STEPS, 0)
        loss = F.cross_entropy(model(x), y)
    if rank == 0:
        print(f"evaluation of {model.module.norm.num_batches_tracked} batches: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
