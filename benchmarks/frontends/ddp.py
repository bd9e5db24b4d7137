"""Script for torchrun, with torch's DistributedDataParallel.  See ../frontends.py."""

import torch
import torch.distributed as dist
from stack import BATCH, make_data, make_model, train
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(make_model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = make_data(dist.get_world_size())
step_ms = train(model, optimizer, DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data)))
if dist.get_rank() == 0:
    print(f"step {step_ms:.1f} ms", flush=True)
dist.destroy_process_group()
