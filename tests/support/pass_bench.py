"""Passes over two layers without a group: fakes that write down what they are told, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from undertow.torch.factors.collector import Wanted
from undertow.torch.passes.passes import Passes

OF_A_PASS = ["begin", "send 1", "send 0", "send_rest", "wait", "land", "end"]
LOCAL = ["accumulated 1", "accumulated 0"]


class Calls(list[str]):
    """A record of calls, in order."""

    def take(self) -> list[str]:
        taken, self[:] = [*self], []
        return taken


class FakeGradients:
    """A table that records its calls."""

    def __init__(self, parameters: Sequence[nn.Parameter], calls: Calls, name: str = "") -> None:
        self.parameters = list(parameters)
        self.names = {parameter: f"p{index}" for index, parameter in enumerate(parameters)}
        self.wants = lambda index: Wanted.GRADIENT
        self.gathered = False
        self.failure: Exception | None = None
        self._calls, self._name = calls, name

    def _note(self, call: str) -> None:
        self._calls.append(self._name + call)

    def begin(self, arrivals: Any = None, *, as_at_first: bool = False) -> None:
        self._note("begin as at first" if as_at_first else "begin")

    def send(self, index: int, fresh: torch.Tensor | None = None) -> None:
        assert not torch.is_grad_enabled()
        self._note(f"send {index}")

    def check_unsent(self, index: int) -> None:
        self._note(f"check {index}")

    def send_rest(self) -> None:
        self._note("send_rest")

    def accumulated(self, index: int, added: torch.Tensor | None) -> None:
        self._note(f"accumulated {index}")

    def takes_factors(self, index: int, *, now: bool) -> bool:
        return self.gathered

    def wait(self) -> None:
        self._note("wait")
        if self.failure is not None:
            raise self.failure

    def land(self) -> bool:
        self._note("land")
        return False


class FakePlanning:
    def __init__(self, calls: Calls, measures: bool = False) -> None:
        self._calls, self._measures = calls, measures

    def adopt(self, gradients: Any) -> None: ...

    def start_forward(self) -> bool:
        self._calls.append("plan a forward")
        return self._measures

    def begin(self, *, has_gates: bool) -> None:
        self._calls.append(f"plan begins, has_gates={has_gates}")

    def skip(self) -> None:
        self._calls.append("plan skips")

    def ready(self, parameter: torch.Tensor) -> None:
        self._calls.append("plan gets one")

    def end(self) -> None:
        self._calls.append("plan ends")


class FakeOverlap:
    """An overlap and its gates."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.gates = self

    def watch(self, gradients: Any, nodes: Any) -> None:
        self._calls.append(f"gates watch {len(list(nodes))}")

    def begin(self) -> None:
        self._calls.append("overlap begins")

    def expect(self, gradients: Any) -> None:
        self._calls.append("expect")

    def wait_for_exposed(self, gradients: Any) -> None:
        self._calls.append("wait for exposed")

    def end(self, gradients: Any) -> None:
        self._calls.append("overlap ends")


def make_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))


class Bench:
    """Two layers, and the passes over their weights, the first layer's first."""

    def __init__(
        self, net: nn.Sequential | None = None, calls: Calls | None = None, name: str = "", **options: Any
    ) -> None:
        self.net = net or make_net()
        self.calls = Calls() if calls is None else calls
        self.name = name
        self.passes = Passes(lambda absent: self.calls.append(name + "end"), **options)
        self.gradients = FakeGradients(list(self.net.parameters()), self.calls, name)
        self.passes.watch(self.gradients)  # type: ignore[arg-type]
        self.inputs = torch.ones(1, 2, requires_grad=True)

    def forward(self, *, synchronise: bool = True, seen: bool = True) -> torch.Tensor:
        """Run a forward as a wrapper does; without `seen` its outputs are not found."""
        if synchronise:
            self.passes.check_closed()
            self.passes.start_forward()
        self.hidden = self.net[0](self.inputs)
        outputs = self.net[1](self.hidden)
        self.passes.expect(outputs if seen else None, synchronise=synchronise)
        return outputs.sum()  # type: ignore[no-any-return]

    def asked_in(self, loss: torch.Tensor, **options: Any) -> Wanted:
        """Return what the backward of this loss wants from the first layer."""
        answers: list[Wanted] = []
        self.hidden.register_hook(lambda gradient: answers.append(self.gradients.wants(0)))
        torch.autograd.backward(loss, **options)
        return answers[0]
