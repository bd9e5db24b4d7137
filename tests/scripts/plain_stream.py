"""Regression on a stream, with an optimizer for each half of the model and a helper that hides the loop."""

import torch
from torch.utils.data import DataLoader, IterableDataset


class Measurements(IterableDataset):
    def __init__(self, count, seed):
        self.count = count
        self.seed = seed

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.count):
            x = torch.randn(6, generator=generator)
            yield x, x.sum().sin().unsqueeze(0)

    def __len__(self):
        return self.count


class Halves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.Tanh())
        self.head = torch.nn.Linear(24, 1)

    def forward(self, x):
        return self.head(self.body(x))


class Trainer:
    def __init__(self):
        torch.manual_seed(3)
        self.model = Halves()
        self.optimizers = [
            torch.optim.Adam(self.model.body.parameters(), lr=0.01),
            torch.optim.SGD(self.model.head.parameters(), lr=0.05),
        ]
        self.loss = torch.nn.MSELoss()

    def train(self, loader):
        for x, y in loader:
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=False)
            self.loss(self.model(x), y).backward()
            for optimizer in self.optimizers:
                optimizer.step()

    @torch.no_grad()
    def evaluate(self, loader):
        losses = [self.loss(self.model(x), y).item() * len(x) for x, y in loader]
        return sum(losses) / len(loader.dataset)


if __name__ == "__main__":
    trainer = Trainer()
    train_loader = DataLoader(Measurements(480, seed=0), batch_size=48)
    test_loader = DataLoader(Measurements(100, seed=1), batch_size=25)
    for epoch in range(5):
        trainer.train(train_loader)
        print(f"epoch {epoch} loss {trainer.evaluate(test_loader):.6f}")
