"""The wrapper itself: its class, its arguments, and how it is saved, copied and discarded."""

from __future__ import annotations

import copy
import gc
import io
import logging
import pickle
import warnings
import weakref

import pytest
import torch
from torch import nn

import undertow
import undertow.torch
from tests.support.workers import on_workers, run_workers
from undertow.plan.replanner import PASSES
from undertow.torch import DistributedDataParallel, parallelize


def make_module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))


def synchronises(model: nn.Module, rank: int) -> bool:
    """Return whether a backward leaves the mean of two ranks."""
    model.zero_grad()
    model(torch.full((1, 3), float(rank))).sum().backward()
    mean = model.module[0].weight.grad.clone()
    model.zero_grad()
    (sum(model.module(torch.full((1, 3), float(other))).sum() for other in range(2)) / 2).backward()
    return torch.allclose(mean, model.module[0].weight.grad)


@on_workers(2)
def test_it_is_an_instance_of_torchs_class(rank: int) -> None:
    model = DistributedDataParallel(make_module())
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    assert model.module[0].weight.shape == (3, 3)
    assert model.device == torch.device("cpu")
    assert model.device_ids is None


@on_workers(2)
def test_frameworks_may_request_a_synchronised_backward(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    for _ in range(2):
        model.zero_grad()
        with model.no_sync():
            first, second = (model(torch.full((1, 1), float(rank + more))) for more in (1, 3))
        first.backward()
        assert model.module.weight.grad == 1 + rank
        model.reducer.prepare_for_backward([])  # as Accelerate does
        second.backward()
        assert model.module.weight.grad == 5


class Inside(nn.Module):
    """A module that calls backward inside its forward, as Lightning's manual optimization does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.outer: list[DistributedDataParallel] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for passes in range(1, 3):
            loss = (self.weight * x).sum()
            self.outer[0].reducer.prepare_for_backward([loss])
            loss.backward()
            assert self.weight.grad == 0.5 * passes
        self.outer[0].require_backward_grad_sync = False
        return loss


@on_workers(2)
def test_backward_inside_forward_is_synchronised(rank: int) -> None:
    model = DistributedDataParallel(Inside())
    model.module.outer.append(model)
    for _ in range(2):
        model.zero_grad()
        model.require_backward_grad_sync = True
        model(torch.full((1,), float(rank)))
    # No forward announces this one.
    (model.module.weight * rank).sum().backward()
    assert model.module.weight.grad == 1 + rank


@on_workers(2)
def test_its_state_has_the_prefix_of_torchs_class_and_loads(rank: int) -> None:
    model = DistributedDataParallel(make_module())
    state = model.state_dict()
    assert list(state) == [f"module.{name}" for name in make_module().state_dict()]
    stream = io.BytesIO()
    torch.save(state, stream)
    with torch.no_grad():
        model.module[0].weight.zero_()
    stream.seek(0)
    model.load_state_dict(torch.load(stream, weights_only=True))
    assert torch.equal(model.module[0].weight, make_module()[0].weight)
    assert synchronises(model, rank)


@on_workers(2)
def test_arguments_that_only_tune_torchs_reducer_change_nothing(rank: int) -> None:
    model = DistributedDataParallel(
        make_module(),
        None,
        None,
        bucket_cap_mb=25,
        find_unused_parameters=True,
        gradient_as_bucket_view=True,
        static_graph=True,
    )
    model._set_static_graph()
    assert synchronises(model, rank)


@on_workers(1)
def test_unsupported_arguments_are_refused_immediately(rank: int) -> None:
    for options in ({"mixed_precision": object()}, {"device_mesh": object()}, {"device_ids": [0, 1]}):
        with pytest.raises(undertow.ConfigError, match=next(iter(options))):
            DistributedDataParallel(make_module(), **options)
    with pytest.raises(undertow.ConfigError, match="device_ids"):
        DistributedDataParallel(make_module(), device_ids=[0])  # a module on the CPU
    with pytest.raises(TypeError, match="find_unused"):
        DistributedDataParallel(make_module(), find_unused=True)
    with pytest.raises(undertow.ConfigError, match="float8_e4m3fn"):
        DistributedDataParallel(nn.ParameterList([torch.zeros(3).to(torch.float8_e4m3fn)]))


TORCHS_SENTENCE = (
    "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient[.]"
)


@on_workers(1)
def test_a_module_without_a_trainable_parameter_is_refused_as_by_torch(rank: int) -> None:
    frozen = make_module().requires_grad_(False)
    ignored = make_module()
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(ignored, list(ignored.state_dict()))
    optimizer = torch.optim.SGD(frozen.parameters(), lr=0.1)
    for wrap in (
        lambda: DistributedDataParallel(nn.Module()),
        lambda: DistributedDataParallel(frozen),
        lambda: DistributedDataParallel(ignored),
        lambda: DistributedDataParallel(frozen, device_ids=[0]),
        lambda: DistributedDataParallel(nn.ReLU(), device_ids=[0], output_device=0),
        lambda: parallelize(frozen, optimizer),
    ):
        with pytest.raises(RuntimeError, match=TORCHS_SENTENCE) as caught:
            wrap()
        assert isinstance(caught.value, undertow.ConfigError)


@on_workers(1)
def test_a_lazy_module_is_refused_as_by_torch(rank: int) -> None:
    with pytest.raises(RuntimeError, match="uninitialized parameter") as caught:
        DistributedDataParallel(nn.LazyLinear(3))
    assert isinstance(caught.value, undertow.ConfigError)


@on_workers(2)
def test_logging_data_describe_the_wrapper(rank: int) -> None:
    module = make_module()
    module[2].bias.requires_grad_(False)
    facts = DistributedDataParallel(module, find_unused_parameters=True)._get_ddp_logging_data()
    assert facts == {
        "backend_name": "undertow",
        "world_size": 2,
        "rank": rank,
        "module_name": "Sequential",
        "device_ids": "",
        "output_device": -1,
        "broadcast_buffers": 1,
        "find_unused_parameters": 1,
        "gradient_as_bucket_view": 0,
        "static_graph": 0,
        "has_sync_bn": 0,
        "num_parameter_tensors": 3,
        "total_parameter_size_bytes": 4 * (9 + 3 + 3),
    }
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3))
    assert DistributedDataParallel(norm)._get_ddp_logging_data()["has_sync_bn"] == 1


@on_workers(1)
def test_communication_hooks_are_refused_with_the_reason(rank: int) -> None:
    with pytest.raises(undertow.ConfigError, match=r"communication hooks .* --ddp off"):
        DistributedDataParallel(make_module()).register_comm_hook(None, lambda state, bucket: None)
    for register in ("_register_builtin_comm_hook", "_register_fused_optim"):
        with pytest.raises(undertow.ConfigError, match="communication hooks"):
            getattr(DistributedDataParallel(make_module()), register)(None)
    with pytest.raises(undertow.ConfigError, match="hooks for buffers are not called"):
        DistributedDataParallel(make_module())._register_buffer_comm_hook(None, lambda state, buffers: None)


@on_workers(1)
def test_features_of_torchs_reducer_are_refused_or_have_no_effect(rank: int) -> None:
    model = DistributedDataParallel(make_module())
    for change, arguments in (("_update_process_group", (None,)), ("_remove_autograd_hooks", ())):
        with pytest.raises(undertow.ConfigError, match="wrapped module cannot be"):
            getattr(model, change)(*arguments)
    module = make_module()
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of this import
    from torch.distributed.optim import _apply_optimizer_in_backward

    _apply_optimizer_in_backward(torch.optim.SGD, module[0].parameters(), {"lr": 0.1})
    with pytest.raises(undertow.ConfigError, match=r"'0\.weight' is stepped during backward"):
        DistributedDataParallel(module)
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["0.weight", "0.bias"])
    late = DistributedDataParallel(module)  # ignored parameters are not averaged: they may be stepped at any time
    _apply_optimizer_in_backward(torch.optim.SGD, module[2].parameters(), {"lr": 0.1})
    with pytest.raises(undertow.ConfigError, match=r"'2\.weight' is stepped during backward"):
        late(torch.ones(1, 3))
    model._set_sparse_metadata({})
    model._set_ddp_sink_clone(False)
    model._set_ddp_runtime_logging_sample_rate(10)
    model(torch.ones(1, 3)).sum().backward()
    model._check_reducer_finalized()


@on_workers(1)
def test_the_error_tells_how_to_keep_torchs_own_wrapper(rank: int) -> None:
    with pytest.raises(undertow.ConfigError, match=r"mixed_precision .* use --ddp off"):
        DistributedDataParallel(make_module(), mixed_precision=object())


@on_workers(1, init=False)
def test_before_joining_the_error_says_what_to_call(rank: int) -> None:
    with pytest.raises(undertow.ConfigError, match=r"undertow\.init\(\)"):
        DistributedDataParallel(make_module())
    with pytest.raises(undertow.ConfigError, match=r"undertow\.init\(\)"):
        undertow.barrier()


@on_workers(2)
def test_a_copy_and_an_unpickled_wrapper_synchronise_again(rank: int) -> None:
    model = DistributedDataParallel(make_module())
    assert synchronises(model, rank)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert other.module[0].weight is not model.module[0].weight
        assert synchronises(other, rank)
    assert synchronises(model, rank)


@on_workers(2)
def test_a_single_rank_may_evaluate_a_copy(rank: int) -> None:
    model = DistributedDataParallel(make_module())
    if rank == 0:
        kept = copy.deepcopy(model)
        with torch.no_grad():
            assert torch.equal(kept.eval()(torch.ones(1, 3)), model.module(torch.ones(1, 3)))
    assert synchronises(model, rank)


@on_workers(1)
def test_a_module_that_changes_its_type_after_wrapping_is_refused(rank: int) -> None:
    for size in (3, 600):
        model = DistributedDataParallel(nn.Linear(size, size)).bfloat16()
        with pytest.raises(undertow.ConfigError, match=r"'weight' was torch\.float32 .* is torch\.bfloat16 now"):
            model(torch.ones(1, size, dtype=torch.bfloat16))


@on_workers(2)
def test_a_deleted_wrapper_leaves_nothing_behind(rank: int) -> None:
    module = make_module()
    model = DistributedDataParallel(module)
    assert synchronises(model, rank)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    module.zero_grad()
    if rank == 0:
        module(torch.ones(1, 3)).sum().backward()  # no other rank takes part
    assert synchronises(DistributedDataParallel(module), rank)


@on_workers(2)
def test_eval_and_train_and_apply_reach_the_module(rank: int) -> None:
    model = DistributedDataParallel(make_module())
    assert not model.eval().module.training
    assert model.train().module.training
    assert model.to(torch.float32) is model
    assert len(list(model.parameters())) == 4
    assert next(iter(dict(model.named_parameters()))) == "module.0.weight"


def hear_of_inputs(rank: int, kind: str) -> list[str]:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("undertow").addHandler(handler)
    model = DistributedDataParallel(make_module())
    numbers = torch.Generator().manual_seed(rank if kind == "own" else 0)
    batch = torch.rand(4, 3, generator=numbers)
    for _ in range(5 * PASSES):
        model(batch).sum().backward()
        batch = batch if kind == "fixed" else torch.rand(4, 3, generator=numbers)
    undertow.barrier()
    return [words for words in heard if "same inputs" in words]


@pytest.mark.parametrize("kind", ["same", "own", "fixed"])
def test_rank_0_logs_once_that_all_train_on_the_same_inputs(kind: str) -> None:
    first, second = run_workers(2, hear_of_inputs, kind)
    assert second == []
    assert len(first) == (kind == "same")
    assert all("own part of the data: loader = undertow.torch.distribute(loader)" in words for words in first)
