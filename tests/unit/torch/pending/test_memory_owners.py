"""Whether a tensor's memory belongs to one owner alone."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import nn

from undertow.torch.pending.memory_owners import is_gradient_alone, is_received_alone, is_value_alone


def test_a_fresh_gradient_of_its_own_memory_is_received_there() -> None:
    parameter = nn.Parameter(torch.zeros(2, 2))
    seen: list[bool] = []
    output = torch.ones(2, 2) @ parameter
    node: Any = output.grad_fn.next_functions[1][0]  # type: ignore[union-attr]
    node.register_hook(lambda inputs, outputs: seen.append(is_received_alone(parameter.grad, outputs[0])))  # type: ignore[arg-type]
    output.sum().backward()
    assert seen == [True]
    assert parameter.grad is not None
    assert is_gradient_alone(parameter.grad)


def test_the_users_storage_object_is_distinguished_from_torchs() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    assert is_value_alone(parameter)
    copy.deepcopy(parameter)
    torch.save(parameter, io.BytesIO())
    assert is_value_alone(parameter)
    storage = parameter.untyped_storage()
    assert not is_value_alone(parameter)
    del storage
    assert is_value_alone(parameter)
    view = parameter.detach()
    assert not is_value_alone(parameter)
    del view
    assert torch.compile(is_value_alone, backend="eager")(parameter)
