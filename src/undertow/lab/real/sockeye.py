"""The zoo's translator as a torch module: LSTMs, attention and input feeding.

In: tokens of the source, and tokens of the target up to the word before.  Out: logits of the target's words.
Its parameters have the names and shapes that `zoo.sockeye` lists.
"""

from __future__ import annotations

import torch
from torch import nn

from undertow.zoo.sockeye import Dimensions

_LAYERS = 2  # on each side


class Attention(nn.Module):
    """Additive attention (Bahdanau et al., 2014): which states of the source matter for the next word."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.key = nn.Linear(units, units, bias=False)
        self.query = nn.Linear(units, units, bias=False)
        self.score = nn.Linear(units, 1, bias=False)

    def forward(self, hidden: torch.Tensor, keys: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """From one state of the decoder, and keys and states of the encoder: what was attended to."""
        scores = self.score(torch.tanh(self.query(hidden) + keys))
        return (torch.softmax(scores, dim=1) * states).sum(dim=1, keepdim=True)


class Sockeye(nn.Module):
    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        units = dims.units
        self.source = nn.Embedding(dims.source_words, units)
        self.encoder = nn.ModuleList(nn.LSTM(units, units, batch_first=True) for _ in range(_LAYERS))
        self.start = nn.ModuleList(nn.Linear(units, units) for _ in range(_LAYERS))
        self.attention = Attention(units)
        self.target = nn.Embedding(dims.target_words, units)
        self.decoder = nn.ModuleList(
            nn.LSTM(inputs, units, batch_first=True) for inputs in (2 * units, *[units] * (_LAYERS - 1))
        )
        self.combine = nn.Linear(2 * units, units)
        self.output = nn.Linear(units, dims.target_words)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        states, carried = self._encode(source)
        keys = self.attention.key(states)
        words = self.target(target)
        attended = torch.zeros_like(words[:, :1])
        outputs = []
        for place in range(target.shape[1]):
            hidden, carried = self._decode(torch.cat((words[:, place : place + 1], attended), dim=2), carried)
            context = self.attention(hidden, keys, states)
            attended = torch.tanh(self.combine(torch.cat((context, hidden), dim=2)))
            outputs.append(attended)
        logits: torch.Tensor = self.output(torch.cat(outputs, dim=1))
        return logits

    def _encode(self, source: torch.Tensor) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """The states of the last layer, and what the decoder's layers start with."""
        x = self.source(source)
        carried = []
        for lstm, start in zip(self.encoder, self.start, strict=True):
            x, (last, cell) = lstm(x)
            carried.append((torch.tanh(start(last)), torch.zeros_like(cell)))
        return x, carried

    def _decode(
        self, x: torch.Tensor, carried: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """One word further."""
        after = []
        for lstm, before in zip(self.decoder, carried, strict=True):
            x, state = lstm(x, before)
            after.append(state)
        return x, after
