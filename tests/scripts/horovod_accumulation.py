"""Gradients added up over two passes, sent in sixteen bits, clipped before the step."""

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812  # as users write it
from sklearn.datasets import load_digits

BATCH = 64  # of all workers together, and of one pass
PASSES = 2

hvd.init()
torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)

model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 3, padding=1),
    hvd.SyncBatchNorm(8),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(512, 10),
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.AdamW(model.parameters(), lr=0.01),
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16,
    backward_passes_per_step=PASSES,
)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=11)

for start in range(0, 1408, PASSES * BATCH):
    optimizer.zero_grad()
    for part in range(PASSES):
        own = slice(start + part * BATCH + hvd.rank(), start + (part + 1) * BATCH, hvd.size())
        loss = F.cross_entropy(model(images[own]), labels[own])
        (loss / PASSES).backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    scheduler.step()

model.eval()
with torch.no_grad():
    loss = F.cross_entropy(model(images[1408:]), labels[1408:])
losses = hvd.allgather_object(loss.item())
assert all(other == losses[0] for other in losses), losses
if hvd.rank() == 0:
    print(f"final loss {losses[0]:.7f}")
