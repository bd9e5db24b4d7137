"""A training script as Horovod's users write it: sampler, broadcasts, distributed optimizer, averaged metrics."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812  # as users write it
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()

hvd.init()
torch.manual_seed(42 + hvd.rank())  # the broadcast makes up for it
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).reshape(-1, 64) / 16
labels = torch.tensor(digits.target)
train_dataset = TensorDataset(images[:1408], labels[:1408])
test_dataset = TensorDataset(images[1408:1792], labels[1408:1792])

train_sampler = DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = DataLoader(train_dataset, batch_size=args.batch_size // hvd.size(), sampler=train_sampler)
test_sampler = DistributedSampler(test_dataset, num_replicas=hvd.size(), rank=hvd.rank())
test_loader = DataLoader(test_dataset, batch_size=96, sampler=test_sampler)

model = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
if hvd.rank() == 0:
    torch.manual_seed(0)
    for layer in (model[0], model[2]):
        layer.reset_parameters()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    for data, target in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()


def test():
    model.eval()
    total, correct = 0.0, 0.0
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data)
            total += F.cross_entropy(output, target, reduction="sum").item()
            correct += (output.argmax(1) == target).sum().item()
    return (
        metric_average(total / len(test_sampler), "avg_loss"),
        metric_average(correct / len(test_sampler), "avg_accuracy"),
    )


for epoch in range(args.epochs):
    train(epoch)
    loss, accuracy = test()
    if hvd.rank() == 0:
        print(f"epoch {epoch}: {100 * accuracy:.1f} % right")
if hvd.rank() == 0:
    print(f"final loss {loss:.7f}")
