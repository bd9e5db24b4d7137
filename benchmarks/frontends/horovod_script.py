"""Script for Horovod.  See ../frontends.py."""

import horovod.torch as hvd
import torch
from stack import BATCH, make_data, make_model, train
from torch.utils.data import DataLoader, DistributedSampler

hvd.init()
torch.manual_seed(0)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
data = make_data(hvd.size())
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
step_ms = train(model, optimizer, DataLoader(data, batch_size=BATCH, sampler=sampler))
if hvd.rank() == 0:
    print(f"step {step_ms:.1f} ms", flush=True)
