"""A loop without the distributed optimizer, and ranks that have no equal share of the data."""

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812  # as users write it
from sklearn.datasets import load_digits

BATCH = 64  # of all workers together
TRAIN = 1409  # one more than comes out even: the first rank has a step more than the others

hvd.init()
torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).reshape(-1, 64) / 16
labels = torch.tensor(digits.target)
own = torch.arange(hvd.rank(), TRAIN, hvd.size())

model = torch.nn.Sequential(torch.nn.Linear(64, 200), torch.nn.Tanh(), torch.nn.Linear(200, 10))
hvd.broadcast_parameters(list(model.named_parameters()), root_rank=0)

for _ in range(2):
    for batch in own.split(BATCH // hvd.size()):
        model.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch], reduction="sum").backward()
        count = torch.tensor(float(len(batch)))
        handles = [hvd.allreduce_async_(count, name="count", op=hvd.Sum)]
        for name, parameter in model.named_parameters():
            handles.append(hvd.allreduce_async_(parameter.grad, name=name, op=hvd.Sum))
        for handle in handles:
            hvd.synchronize(handle)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.3 * parameter.grad / count
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)

with torch.no_grad():
    test = torch.arange(TRAIN + hvd.rank(), len(labels), hvd.size())
    losses = F.cross_entropy(model(images[test]), labels[test], reduction="none")
gathered = hvd.allgather(losses, name="losses")
assert len(gathered) == len(labels) - TRAIN
if hvd.rank() == 0:
    print(f"final loss {gathered.mean().item():.7f}")
