"""A classifier of digits, as people write it for one machine."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=50)
    args = parser.parse_args()

    torch.manual_seed(1)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train, test = random_split(data, [1497, 300])
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test, batch_size=100)

    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    print("parameters:", sum(p.numel() for p in model.parameters()))

    for epoch in range(args.epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()

        model.eval()
        total, correct = 0.0, 0
        with torch.no_grad():
            for x, y in test_loader:
                outputs = model(x)
                total += criterion(outputs, y).item() * len(x)
                correct += (outputs.argmax(1) == y).sum().item()
        print(f"epoch {epoch} loss {total / len(test):.6f} accuracy {correct / len(test):.3f}")

    torch.save(model.state_dict(), "digits.pt")
    model.load_state_dict(torch.load("digits.pt"))


if __name__ == "__main__":
    main()
