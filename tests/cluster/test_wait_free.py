"""Wait-free backpropagation (Poseidon): verified with trace events, not with a clock."""

from __future__ import annotations

import torch
from torch import nn

import undertow
from tests.support.step_events import list_events
from tests.support.wait_free import WIDTH, Stack
from tests.support.workers import on_workers
from undertow.torch import DistributedDataParallel
from undertow.tracing.recorder import process_recorder


@on_workers(2)
def test_the_last_layers_mean_arrives_before_the_first_layers_gradient_exists(rank: int) -> None:
    model = DistributedDataParallel(Stack())
    undertow.barrier()  # transfers of the start are complete
    process_recorder.start()
    model(torch.full((1, WIDTH), float(rank))).sum().backward()
    process_recorder.stop()
    order = [what for _, what in list_events()]
    assert order.index("last.weight") < order.index("result") < order.index("first.weight")


@on_workers(2, environment={"UNDERTOW_WAIT_FREE": "off"})
def test_without_wait_free_nothing_is_sent_before_backward_has_ended(rank: int) -> None:
    reached_the_end = []
    first = nn.Linear(WIDTH, WIDTH, bias=False)
    model = DistributedDataParallel(nn.Sequential(first, nn.Linear(WIDTH, WIDTH, bias=False)))
    undertow.barrier()
    # A parameter's own hook runs before ours: all that is sent by then was sent during backward.
    first.weight.register_post_accumulate_grad_hook(lambda _: reached_the_end.append(list_events()))
    process_recorder.start()
    model(torch.full((1, WIDTH), float(rank))).sum().backward()
    process_recorder.stop()
    assert reached_the_end == [[]]
    assert {what for _, what in list_events()} == {"0.weight", "1.weight", "sent", "result"}
    expected = torch.full((WIDTH, WIDTH), 0.5) * model.module[1].weight.sum(0)[:, None]
    torch.testing.assert_close(first.weight.grad, expected)
