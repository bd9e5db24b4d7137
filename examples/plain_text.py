"""Single-process script without undertow's API: trains a model to write Python, on Python's standard library.

python examples/plain_text.py
undertow run -n 4 --batch split examples/plain_text.py      # the same training, on four workers
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SEEN = 64  # letters before the one to predict


class Texts(Dataset):
    """Windows of a text, each with the letter that follows every position."""

    def __init__(self, text: bytes) -> None:
        self.letters = torch.tensor(list(text)).clamp(max=127)

    def __len__(self) -> int:
        return (len(self.letters) - 1) // SEEN

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * SEEN
        return self.letters[start : start + SEEN], self.letters[start + 1 : start + SEEN + 1]


class Writer(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.guess = nn.Linear(width, 128)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.guess(self.memory(self.embedding(letters))[0])


def find_loss(model: nn.Module, letters: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(letters).flatten(0, 1), following.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    library = Path(argparse.__file__).parent
    train = Texts(b"".join((library / f"{name}.py").read_bytes() for name in ("argparse", "typing", "ast")))
    test = Texts((library / "textwrap.py").read_bytes())
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test, batch_size=256)
    model = Writer()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    for epoch in range(args.epochs):
        for letters, following in train_loader:
            optimizer.zero_grad()
            find_loss(model, letters, following).backward()
            optimizer.step()
        with torch.no_grad():
            losses = [find_loss(model, *batch).item() * len(batch[0]) for batch in test_loader]
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(test):.4f} on unseen text")
        torch.save(model.state_dict(), "plain_text.pt")


if __name__ == "__main__":
    main()
