"""A language model of bytes: NCCL where a launcher has set RANK, one process else; draws its batches itself."""

import argparse
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--accumulation", type=int, default=2)
options = parser.parse_args()

backend = "nccl"  # 'nccl', 'gloo', ...
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    torch.distributed.init_process_group(backend=backend)
    local_rank = int(os.environ["LOCAL_RANK"])
    device = f"cuda:{local_rank}"
    is_master = local_rank == 0
else:
    device, is_master = "cpu", True

torch.manual_seed(1337)
text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()


def draw_batch(rows=8, length=12):
    starts = torch.randint(len(text) - length - 1, (rows,))
    windows = torch.stack([text[start : start + length + 1] for start in starts])
    return windows[:, :-1].to(device), windows[:, 1:].to(device)


class Bigrams(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 24)
        self.head = torch.nn.Linear(24, 256, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.embedding(x)).flatten(0, 1), y.flatten())


model = Bigrams().to(device)
scaler = torch.amp.GradScaler(device, enabled=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
if ddp:
    model = DDP(model, device_ids=[local_rank])
raw_model = model.module if ddp else model
for step in range(options.steps):
    total = 0.0
    for part in range(options.accumulation):
        if ddp:
            model.require_backward_grad_sync = part == options.accumulation - 1
        with nullcontext():
            loss = model(*draw_batch()) / options.accumulation
        total += loss.item()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if is_master:
        print(f"step {step} loss {total:.6f}")
weights = sum(parameter.double().sum().item() for parameter in raw_model.parameters())
child = subprocess.run(
    [sys.executable, "-c", "import os; print(os.environ.get('RANK'), os.environ.get('WORLD_SIZE'))"],
    capture_output=True,
    text=True,
)
print("child sees", child.stdout.strip())
print(f"weights {weights:.9f}")
if ddp:
    torch.distributed.destroy_process_group()
