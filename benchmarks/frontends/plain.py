"""Script for one process.  See ../frontends.py."""

import sys

import torch
from stack import BATCH, make_data, make_model, train
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = make_data(int(sys.argv[1]))
print(f"step {train(model, optimizer, DataLoader(data, batch_size=BATCH, shuffle=True)):.1f} ms", flush=True)
