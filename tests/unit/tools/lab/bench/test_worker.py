"""What a worker of the bench trains, and what it reports about a lap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from undertow.errors import ConfigError
from undertow.tools.lab.bench.messages import Assignment
from undertow.tools.lab.bench.worker import Trainer, count_gradient_bytes, digest, find_occupancy, make_workload
from undertow.tools.lab.real import REAL_NAMES
from undertow.tools.lab.replay.device import make_devices
from undertow.tools.zoo import find_model


class Regression:
    """Workload that records the batches that were requested."""

    batch = 1
    compute_s = None

    def __init__(self) -> None:
        self.model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.asked: list[tuple[int, int]] = []

    def make_batch(self, rank: int, step: int) -> tuple[torch.Tensor, ...]:
        self.asked.append((rank, step))
        return (torch.ones(1, 2),)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return model(*batch).sum()


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.module(*given)


class Counting:
    """System that sends ten bytes at every flush."""

    name, about = "counting", ""

    def __init__(self, *, counts: bool = True) -> None:
        self.sent = 1000
        self.counts = counts
        self.flushes = 0
        self.wrapped: list[Any] = []

    def wrap(self, model: nn.Module, optimizer: Any, *, scale: float) -> tuple[nn.Module, Any]:
        self.wrapped.append((model, optimizer, scale))
        return Wrapper(model), optimizer

    def flush(self) -> None:
        self.flushes += 1
        self.sent += 10

    def bytes_sent(self) -> int | None:
        return self.sent if self.counts else None


def trainer(workload: Regression, system: Counting) -> Trainer:
    return Trainer(workload, system, rank=3, scale=7.0)  # type: ignore[arg-type]


def test_a_lap_is_so_many_steps_of_this_rank() -> None:
    workload, system = Regression(), Counting()
    worker = trainer(workload, system)
    first = worker.run(3)
    second = worker.run(2)
    assert workload.asked == [(3, 0), (3, 1), (3, 2), (3, 3), (3, 4)]  # steps are counted across laps
    assert (len(first.ends_s), len(second.ends_s)) == (3, 2)
    ends_s = [*first.ends_s, *second.ends_s]
    assert ends_s == sorted(ends_s)
    assert system.wrapped == [(workload.model, workload.optimizer, 7.0)]


def test_every_step_really_trains_with_fresh_gradients() -> None:
    workload = Regression()
    trainer(workload, Counting()).run(4)
    assert torch.equal(workload.model.weight, torch.full((1, 2), -4.0))


def test_a_lap_counts_what_was_sent_until_nothing_is_on_its_way() -> None:
    workload, system = Regression(), Counting()
    worker = trainer(workload, system)
    assert [worker.run(2).sent_bytes for _ in range(2)] == [10, 10]
    assert system.flushes == 2
    assert trainer(Regression(), Counting(counts=False)).run(1).sent_bytes is None


def test_a_lap_carries_the_digest_of_the_parameters_after_it() -> None:
    workload = Regression()
    worker = trainer(workload, Counting())
    before = digest(workload.model)
    lap = worker.run(1)
    assert lap.digest == digest(workload.model) != before
    assert lap.cpu_s >= 0


# The digest


def test_the_digest_is_that_of_the_values() -> None:
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    assert digest(one) != digest(other)
    other.load_state_dict(one.state_dict())
    assert digest(one) == digest(other)


@pytest.mark.parametrize("index", [0, 63, 64, 16383])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_the_digest_sees_a_single_number(name: str, index: int) -> None:
    model = nn.Linear(4, 16384 // 4)
    parameter = model.get_parameter(name).detach().view(-1)
    before = digest(model)
    parameter[index % parameter.numel()] += 1e-6
    assert digest(model) != before


def test_the_digest_sees_the_gradients_too() -> None:
    one = nn.Linear(3, 2)
    other = nn.Linear(3, 2)
    other.load_state_dict(one.state_dict())
    for model, value in ((one, 1.0), (other, 2.0)):
        model.weight.grad = torch.full((2, 3), value)
    assert digest(one) != digest(other)


def test_replayed_workers_that_do_not_average_are_found_out() -> None:
    digests = set()
    for rank in range(2):
        workload = make_workload("googlenet", rank=rank, scale=10_000.0, batch=1)
        workload.model.device.compute = lambda seconds: None  # type: ignore[method-assign, attr-defined]
        workload.loss(workload.model, ()).backward()
        workload.optimizer.step()
        digests.add(digest(workload.model))
    assert len(digests) == 2


def test_what_is_not_trained_is_neither_compared_nor_counted() -> None:
    model = nn.Linear(3, 2)
    before = digest(model)
    assert count_gradient_bytes(model) == 4 * (6 + 2)
    model.weight.requires_grad_(False)
    assert count_gradient_bytes(model) == 4 * 2
    after = digest(model)
    with torch.no_grad():
        model.weight.fill_(5)
    assert after == digest(model) != before


def test_bytes_are_those_of_the_parameters_type() -> None:
    assert count_gradient_bytes(nn.Linear(3, 2).half()) == 2 * 8
    assert count_gradient_bytes(nn.Linear(3, 2).double()) == 8 * 8


# Workloads


def test_a_replayed_workload_has_the_published_time() -> None:
    model = find_model("googlenet")
    workload = make_workload("googlenet", rank=0, scale=1000.0, batch=None)
    assert (workload.batch, workload.compute_s) == (128, pytest.approx(model.iteration_s))
    half = make_workload("googlenet", rank=0, scale=1000.0, batch=64)
    assert (half.batch, half.compute_s) == (64, pytest.approx(model.iteration_s / 2))
    assert half.make_batch(0, 0) == ()


def test_a_real_workload_has_to_be_measured() -> None:
    workload = make_workload("gpt", rank=0, scale=1, batch=2)
    assert (workload.batch, workload.compute_s) == (2, None)
    workload.loss(workload.model, workload.make_batch(0, 0)).backward()
    assert all(parameter.grad is not None for parameter in workload.model.parameters())


def test_an_unknown_workload_is_refused() -> None:
    assert "nonsense" not in REAL_NAMES
    with pytest.raises(ConfigError, match="unknown model 'nonsense'"):
        make_workload("nonsense", rank=0, scale=1.0, batch=None)


def test_all_ranks_start_from_the_same_weights() -> None:
    for name in ("gpt", "googlenet"):
        scale = 1.0 if name == "gpt" else 1000.0
        one, other = (make_workload(name, rank=rank, scale=scale, batch=1) for rank in range(2))
        assert digest(one.model) == digest(other.model)


# Devices that several jobs share


def assignment(model: str, devices: str | None) -> Assignment:
    return Assignment(model=model, system="undertow", scale=1.0, batch=None, devices=devices)


def test_a_host_has_a_core_where_compute_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Any] = []
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {7, 3, 5}, raising=False)
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, cores: pinned.append((pid, cores)), raising=False)
    assert find_occupancy(assignment("gpt", "/devices"), 1) is None
    assert pinned == [(0, [5])]
    assert find_occupancy(assignment("gpt", None), 1) is None
    assert len(pinned) == 1


def test_a_replayed_device_is_its_hosts(tmp_path: Path) -> None:
    make_devices(tmp_path, 2)
    assert find_occupancy(assignment("resnet50", None), 1) is None
    one, other = (find_occupancy(assignment("resnet50", str(tmp_path)), host) for host in (1, 0))
    assert one is not None
    assert other is not None
    assert (one.occupy(0.0, 3.0), one.occupy(0.0, 3.0), other.occupy(0.0, 3.0)) == (3.0, 6.0, 3.0)


def test_a_shared_device_is_the_one_that_the_model_computes_on() -> None:
    class Counting:
        seconds = 0.0

        def occupy(self, begin_s: float, seconds: float) -> float:
            self.seconds += seconds
            return begin_s

    occupancy = Counting()
    workload = make_workload("googlenet", rank=0, scale=1000.0, batch=None, occupancy=occupancy)
    workload.loss(workload.model, workload.make_batch(0, 0)).backward()
    assert occupancy.seconds == pytest.approx(workload.compute_s)
