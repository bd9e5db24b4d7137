"""A character model of Python's standard library, one long file of cells as a notebook exports it."""

# In[1]:
import keyword
import random
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

random.seed(7)
np.random.seed(7)
torch.manual_seed(7)

# In[2]:
names = sorted(set(sys.stdlib_module_names) | set(keyword.kwlist))
random.shuffle(names)
letters = ["."] + sorted(set("".join(names)))
number = {letter: index for index, letter in enumerate(letters)}
print(f"{len(names)} names, {len(letters)} letters")


class Contexts(Dataset):
    """Three letters, and the one that follows."""

    def __init__(self, names):
        self.pairs = []
        for name in names:
            context = [0, 0, 0]
            for letter in [*name, "."]:
                self.pairs.append((torch.tensor(context), number[letter]))
                context = [*context[1:], number[letter]]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


# In[3]:
train, valid = Contexts(names[:200]), Contexts(names[200:])
weights = torch.tensor([2.0 if target == 0 else 1.0 for _, target in train.pairs])
loader = DataLoader(train, batch_size=61, sampler=WeightedRandomSampler(weights, 500), num_workers=2)
valid_loader = DataLoader(valid, batch_size=256)


# In[4]:
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(len(letters), 8)
        self.hidden = torch.nn.Linear(24, 32)
        self.out = torch.nn.Linear(32, len(letters))

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(self.embedding(x).flatten(1))))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)

# In[5]:
best = float("inf")
for epoch in range(4):
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y) / 2  # two batches are one step
        loss.backward()
        if step % 2 == 1 or step == len(loader) - 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        print(f"\rbatch {step}", end="", file=sys.stderr)
    with torch.no_grad():
        total = sum(F.cross_entropy(model(x), y, reduction="sum").item() for x, y in valid_loader)
    valid_loss = total / len(valid)
    schedule.step(valid_loss)
    if valid_loss < best:
        best = valid_loss
        torch.save({"model": model.state_dict(), "epoch": epoch}, "best.pt")
    print(f"epoch {epoch} loss {valid_loss:.6f}")

# In[6]:
checkpoint = torch.load("best.pt")
model.load_state_dict(checkpoint["model"])
print("best epoch", checkpoint["epoch"])
