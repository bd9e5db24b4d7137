"""The trace of real workers: every stage of every step, on one clock, and nothing when nobody asks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undertow
from tests.support.overlapped_training import SLOW, make_net, sgd, train
from tests.support.perfetto import Event, find_faults, read_events
from tests.support.workers import on_workers, outcomes_of, run_workers
from undertow.errors import ConfigError
from undertow.observe.trace.merging import merge
from undertow.torch import DistributedDataParallel, parallelize
from undertow.tracing.recorder import process_recorder

STEPS = 6
WORKERS = 2


def wait_for_all(rank: int) -> list[torch.Tensor]:
    net = make_net()
    train(DistributedDataParallel(net), sgd(net), rank, steps=STEPS)
    return [parameter.detach().clone() for parameter in net.parameters()]


def start_early(rank: int) -> list[torch.Tensor]:
    model, optimizer = parallelize(net := make_net(), sgd(net))
    train(model, optimizer, rank, steps=STEPS)
    return [parameter.detach().clone() for parameter in net.parameters()]


def trace(
    folder: Path, body: Callable[..., Any], environment: Mapping[str, str] | None = None, **options: Any
) -> list[Event]:
    """The events of all ranks."""
    run_workers(WORKERS, body, environment={"UNDERTOW_TRACE": str(folder), **(environment or {})}, **options)
    merged = merge(folder)
    assert merged is not None
    events = read_events(merged)
    assert find_faults(events) == []
    assert sum(event["name"] == "undertow.end" for event in events) == WORKERS
    return events


def spans(events: list[Event], cat: str, rank: int | None = None) -> list[Event]:
    return [e for e in events if e.get("cat") == cat and e["ph"] == "X" and rank in (None, e["pid"])]


def count(events: list[Event], cat: str, rank: int) -> Counter[str]:
    return Counter(span["name"] for span in spans(events, cat, rank))


@pytest.mark.parametrize("body", [wait_for_all, start_early])
def test_every_stage_of_every_step_is_there(body: Callable[..., Any], tmp_path: Path) -> None:
    events = trace(tmp_path, body, SLOW)
    tensors = [name for name, _ in make_net().named_parameters()]
    for rank in range(WORKERS):
        assert count(events, "forward", rank) == dict.fromkeys(["0", "2", "4"], STEPS)
        assert count(events, "hook", rank) == dict.fromkeys(tensors, STEPS)
        assert [span["args"]["step"] for span in spans(events, "step", rank)] == list(range(1, STEPS))
        for cat in ("backward", "wire-out", "wire-in", "shard", "apply", "optimizer"):
            assert spans(events, cat, rank), cat
        assert any(event.get("cat") == "queue" for event in events if event["pid"] == rank)
    assert {"0.weight", "2.weight"} <= {span["args"].get("tensor") for span in spans(events, "wait")}
    reasons = {span["args"]["reason"] for span in spans(events, "wait") if "tensor" in span["args"]}
    assert reasons == ({"a gate"} if body is start_early else {"the end of backward"})


@pytest.mark.parametrize("body", [wait_for_all, start_early])
def test_whatever_is_sent_arrives_and_every_gradient_has_its_arrow(body: Callable[..., Any], tmp_path: Path) -> None:
    events = trace(tmp_path, body, SLOW, over_tcp=True)

    def tell(span: Event) -> tuple[Any, ...]:
        args, rank = span["args"], span["pid"]
        return args.get("from", rank), args.get("to", rank), args["kind"], args["key"], args["round"], args["bytes"]

    assert Counter(map(tell, spans(events, "wire-out"))) == Counter(map(tell, spans(events, "wire-in")))
    arrows = Counter(event["ph"] for event in events if event.get("cat") == "gradient")
    tensors = len(list(make_net().parameters()))
    assert arrows["s"] == WORKERS * STEPS * tensors
    # In overlap nobody has read the last step's weights when the script ends, but to hand them back.
    assert arrows["f"] == arrows["s"]


@pytest.mark.parametrize("body", [wait_for_all, start_early])
def test_a_trace_changes_no_bit(body: Callable[..., Any], tmp_path: Path) -> None:
    plain = run_workers(WORKERS, body)
    traced = run_workers(WORKERS, body, environment={"UNDERTOW_TRACE": str(tmp_path)})
    for ours, theirs in zip(traced, plain, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


SKEW_S = 1000.0


def run_skewed(rank: int) -> None:
    """A host whose clock shows something else altogether."""
    process_recorder.clock = lambda: time.monotonic() + SKEW_S * rank
    undertow.init()
    wait_for_all(rank)


def test_clocks_are_aligned_to_half_of_a_round_trip(tmp_path: Path) -> None:
    events = trace(tmp_path, run_skewed, init=False, over_tcp=True)
    compared = [event for event in events if event["name"] == "undertow.clock"]
    assert len(compared) >= 16
    assert {event["pid"] for event in compared} == {1}
    best = min(compared, key=lambda event: event["args"]["round_trip_s"])["args"]
    assert abs(best["offset_s"] + SKEW_S) <= best["round_trip_s"] / 2
    # So the steps of both ranks lie on each other, and nothing comes before it was sent.
    # Each time is written with the best comparison known by then, which is no worse than the first.
    slack_us = compared[0]["args"]["round_trip_s"] * 1e6
    sent = {(e["pid"], e["args"]["to"], *_identify(e)): e["args"]["sent"] for e in spans(events, "wire-out")}
    for event in spans(events, "wire-in"):
        assert event["ts"] + event["dur"] >= sent[event["args"]["from"], event["pid"], *_identify(event)] - slack_us


def _identify(span: Event) -> tuple[Any, ...]:
    args = span["args"]
    return args["kind"], args["key"], args["round"], args["tensors"][0]


def accumulate(rank: int) -> None:
    net = make_net()
    model, optimizer = DistributedDataParallel(net), sgd(net)
    for _ in range(3):
        with model.no_sync():
            model(torch.randn(4, 64)).sum().backward()
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        model(torch.randn(4, 64))


def test_what_is_accumulated_belongs_to_the_step(tmp_path: Path) -> None:
    events = trace(tmp_path, accumulate)
    assert [span["args"]["step"] for span in spans(events, "step", 0)] == [1, 2]
    assert Counter(span["args"]["step"] for span in spans(events, "forward", 0)) == dict.fromkeys([1, 2, 3], 6)


def compile_inside(rank: int) -> None:
    import warnings

    warnings.simplefilter("default")  # torch's own, many
    net = make_net()
    train(DistributedDataParallel(torch.compile(net, backend="eager")), sgd(net), rank, steps=3)


def test_a_compiled_model_is_one_layer(tmp_path: Path) -> None:
    events = trace(tmp_path, compile_inside)
    assert count(events, "forward", 0) == {"OptimizedModule": 3}
    assert spans(events, "hook", 0)


def plan_something(rank: int) -> None:
    net = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512))
    model, optimizer = parallelize(net, sgd(net))
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(2, 512)).square().mean().backward()
        optimizer.step()


def test_the_plan_and_what_the_link_carries_are_in_it(tmp_path: Path) -> None:
    events = trace(tmp_path, plan_something, {"UNDERTOW_PLAN": "factors", "UNDERTOW_SMALLEST_SLICE": "65536"})
    plans = [event["args"] for event in events if event["name"] == "undertow.plan"]
    assert len(plans) == WORKERS
    assert {choice["scheme"] for choice in plans[0]["plan"]["choices"]} == {"factors", "dense"}
    assert [layer["name"] for layer in plans[0]["profile"]["layers"]] == ["0", "2"]
    assert all(event["args"]["bytes_per_s"] > 0 for event in events if event["name"] == "undertow.link")
    pieces = [span for span in spans(events, "wire-out") if span["args"]["tensors"] == ["0.weight"]]
    assert {span["args"]["kind"] for span in pieces} == {"push", "result"}  # dense at first


def meet_through_torch(rank: int, folder: str) -> None:
    """As in a script that makes its processes itself: nothing in the environment tells ranks."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORKERS)
    undertow.init()
    wait_for_all(rank)
    torch.distributed.destroy_process_group()


def test_ranks_are_those_of_the_group_whatever_the_environment_says(tmp_path: Path) -> None:
    none = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "UNDERTOW_RENDEZVOUS"), "")
    run_workers(
        WORKERS,
        meet_through_torch,
        str(tmp_path),
        environment={**none, "UNDERTOW_TRACE": str(tmp_path / "trace")},
        init=False,
    )
    for rank in range(WORKERS):
        (about,) = (e for e in read_events(tmp_path / "trace" / f"rank-{rank}.json") if e["name"] == "undertow")
        assert (about["args"]["rank"], about["args"]["world_size"]) == (rank, WORKERS)


def train_in_part(rank: int, folder: str) -> bool:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORKERS)
    alone = [torch.distributed.new_group([one]) for one in range(WORKERS)][rank]
    net = make_net()
    train(DistributedDataParallel(net, process_group=alone), sgd(net), rank, steps=2)
    torch.distributed.destroy_process_group()
    return process_recorder.is_on


def test_a_model_of_some_workers_is_not_recorded(tmp_path: Path) -> None:
    environment = {"UNDERTOW_TRACE": str(tmp_path / "trace")}
    outcomes = outcomes_of(WORKERS, train_in_part, str(tmp_path), environment=environment, init=False)
    assert [outcome.value for outcome in outcomes] == [False, False]
    assert "neither traced nor shown in the live view" in outcomes[0].log
    assert not (tmp_path / "trace").exists()


def join_in_vain(rank: int) -> str:
    with pytest.raises(ConfigError) as refused:
        undertow.init(trace="/dev/null/trace")
    return str(refused.value)


def test_a_folder_that_cannot_be_written_is_named() -> None:
    assert run_workers(1, join_in_vain, init=False) == [
        "the trace cannot be written to /dev/null/trace: Not a directory"
    ]


@on_workers(2)
def test_off_nothing_is_hooked_and_nothing_noted(rank: int) -> None:
    net = make_net()
    model = DistributedDataParallel(net)
    assert not any(layer._forward_hooks for layer in net.modules())
    train(model, sgd(net), rank, steps=2)
    assert not process_recorder.is_on
    assert process_recorder.events() == []


def test_only_so_many_steps_are_recorded(tmp_path: Path) -> None:
    events = trace(tmp_path, wait_for_all, {"UNDERTOW_TRACE_STEPS": "2:3"})
    for rank in range(WORKERS):
        assert [span["args"]["step"] for span in spans(events, "step", rank)] == [2, 3]
        assert {span["args"]["step"] for span in spans(events, "hook", rank)} == {2, 3}
