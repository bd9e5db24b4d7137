"""Ranks that train on the same inputs are detected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from undertow.torch.planning import inputs
from undertow.torch.planning.inputs import SAMPLES, digest_inputs


def test_a_digest_depends_on_values_and_shapes_at_any_depth() -> None:
    tensor = torch.arange(6.0)
    assert digest_inputs((tensor,), {}) == digest_inputs((tensor.clone(),), {})
    assert digest_inputs((), {"x": [tensor + 1]}) != digest_inputs((), {"x": [tensor]})
    assert digest_inputs(tensor.view(2, 3)) != digest_inputs(tensor)


def test_inputs_without_a_cheap_tensor_have_no_digest() -> None:
    assert digest_inputs((3, "word"), {}) is None
    assert digest_inputs(torch.ones(2, device="meta"), torch.ones(0)) is None
    assert digest_inputs(torch.ones(3, 2, dtype=torch.bool), torch.tensor(1)) is not None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_has_no_digest(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)
    assert digest_inputs(nested) is None
    assert digest_inputs(nested, torch.ones(3)) == digest_inputs(torch.ones(3))


def test_tensors_wrapped_by_functorch_have_no_digest() -> None:
    found: list[int | None] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        found.append(digest_inputs(x))
        return x.sum()

    torch.func.vmap(model)(torch.ones(2, 3))
    torch.func.grad(model)(torch.ones(3))
    assert found == [None, None]


def test_a_tensor_that_cannot_be_read_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("cannot access its data")

    monkeypatch.setattr(inputs, "_sample", refuse)
    assert digest_inputs(torch.ones(3)) is None


@pytest.mark.parametrize("change", [lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[:1].expand(4, 6), torch.conj])
def test_tensors_that_are_not_contiguous_have_a_digest(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = torch.arange(24.0).reshape(4, 6).to(torch.complex64 if change is torch.conj else torch.float32)
    found = digest_inputs(change(tensor))
    assert found is not None
    assert found == digest_inputs(change(tensor.clone())) == digest_inputs(change(tensor).clone())
    assert found != digest_inputs(change(tensor + 1))


def test_little_of_a_large_tensor_is_read() -> None:
    made: list[torch.Tensor] = []

    class Noting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **kwargs or {})
            made.extend([found] if isinstance(found, torch.Tensor) else [])
            return found

    large = [torch.zeros(300, 400).t(), torch.zeros(120_000)]
    with Noting():
        digest_inputs(large)
    given = {tensor.untyped_storage().data_ptr() for tensor in large}
    sizes = [one.untyped_storage().nbytes() for one in made if one.untyped_storage().data_ptr() not in given]
    assert 0 < max(sizes) < 2 * SAMPLES * 8


def test_tensors_on_accelerators_are_read_only_if_waiting_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.arange(6.0)
    expected = digest_inputs(tensor)
    monkeypatch.setattr(inputs, "HOST", "another")  # the tensor is on an accelerator, as it were
    assert digest_inputs(tensor) is None
    assert digest_inputs(tensor, waits=True) == expected
    monkeypatch.setattr(torch.cpu, "is_current_stream_capturing", lambda: True, raising=False)
    assert digest_inputs(tensor, waits=True) is None, "nothing may be read while a graph is captured"
