"""Horovod's operations on real workers: values, gradients, and errors that end one operation only."""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import undertow
from tests.support.workers import on_workers
from undertow.engine.client.group import ConnectedGroup
from undertow.errors import ConfigError, MismatchError
from undertow.horovod import torch as hvd
from undertow.horovod.torch import handles, joining

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32)
OTHERS = (torch.uint8, torch.int8, torch.int16)
LARGE = 30_000  # several slices


def filled(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, value).to(dtype)


@on_workers(3)
def test_sums_and_means_of_all_types_and_sizes(rank: int) -> None:
    for dtype, shape in itertools.product((*FLOATS, *WHOLE, *OTHERS), ((), (5,), (2, 3, 4), (0, 3), (LARGE,))):
        own = filled(rank + 1, *shape, dtype=dtype)
        before = own.clone()
        for op, expected in ((hvd.Sum, 6), (hvd.Average, 2), (hvd.Min, 1), (hvd.Max, 3), (hvd.Product, 6)):
            result = hvd.allreduce(own, op=op)
            assert result.dtype is dtype
            assert result.shape == own.shape
            assert (result == expected).all(), (dtype, shape, op)
            assert torch.equal(own, before)
        hvd.allreduce_(own, op=hvd.Sum)
        assert (own == 6).all()


@on_workers(3)
def test_large_and_small_sums_have_the_same_bits(rank: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    for dtype in FLOATS:
        own = torch.randn(LARGE, generator=generator).to(dtype)
        large = hvd.allreduce(own)
        small = torch.cat([hvd.allreduce(part) for part in own.split(500)[:4]])
        assert torch.equal(large[:2000], small)
        others = hvd.allgather(large.unsqueeze(0))
        assert all(torch.equal(other, large) for other in others)


@on_workers(3)
def test_means_of_whole_numbers_are_truncated(rank: int) -> None:
    for size in (4, LARGE):
        own = torch.tensor([-7, 7, 100 + rank, 1]).repeat(size // 4)
        assert hvd.allreduce(own)[:4].tolist() == [-7, 7, 101, 1]
        uneven = hvd.allreduce(torch.full((size,), -1 if rank else -2))
        assert (uneven == -1).all()  # a third of -4


@on_workers(2)
def test_values_are_scaled_before_and_after(rank: int) -> None:
    for dtype, size in itertools.product((*FLOATS, *WHOLE), (7, LARGE)):
        own = filled(8 + rank, size, dtype=dtype)
        result = hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
        expected = 24.0 if dtype in WHOLE else 25.5
        assert (result == expected).all(), (dtype, result[:2])
        average = hvd.allreduce_(own.clone(), prescale_factor=2.0)
        assert (average == 17).all()


@on_workers(2)
def test_operations_are_matched_by_name_in_any_order(rank: int) -> None:
    names = [f"tensor {index}" for index in range(12)]
    order = names if rank == 0 else names[::-1]
    own = {name: filled(10 * index + rank, 7 if index % 2 else LARGE) for index, name in enumerate(names)}
    started = {name: hvd.allreduce_async_(own[name], name=name, op=hvd.Sum) for name in order}
    unnamed = hvd.allreduce_async(filled(rank, 3))
    for index, name in enumerate(names):
        result = hvd.synchronize(started[name])
        assert result is own[name]
        assert (result == 20 * index + 1).all()
        assert hvd.poll(started[name])
        assert hvd.synchronize(started[name]) is None
    assert hvd.synchronize(unnamed).tolist() == [0.5] * 3


@on_workers(2)
def test_an_operation_is_pending_until_all_ranks_have_started_it(rank: int) -> None:
    if rank == 0:
        own = filled(1, 5)
        handle = hvd.allreduce_async_(own, name="x", op=hvd.Sum)
        assert not hvd.poll(handle)
        with pytest.raises(ValueError, match="already pending"):
            hvd.allreduce_async(own, name="x")
        assert hvd.allgather(torch.zeros(1)).shape == (2,)  # the other rank starts it now
        while not hvd.poll(handle):
            pass
        assert (own == 3).all()  # before any rank has synchronised
        assert hvd.synchronize(handle) is own
    else:
        assert hvd.allgather(torch.zeros(1)).shape == (2,)
        assert (hvd.allreduce(filled(2, 5), name="x", op=hvd.Sum) == 3).all()


def differing(rank: int) -> dict[str, object]:
    """Return calls that differ between two ranks, by the pattern of their error."""
    either = (torch.int32, torch.float32)[rank]
    return {
        r"\[17\] torch.float32 against 'x' \[18\] torch.float32": lambda: hvd.allreduce(filled(1, 17 + rank), name="x"),
        r"\[34\] torch.float32 against 'x' \[2, 17\]": lambda: hvd.allreduce(
            filled(1, *((34,), (2, 17))[rank]), name="x"
        ),
        "torch.int32 against 'x' .* torch.float32": lambda: hvd.allreduce(filled(1, 17, dtype=either), name="x"),
        "op Sum, .* against op Average": lambda: hvd.allreduce(filled(1, 2), name="x", op=(hvd.Sum, hvd.Average)[rank]),
        "scaled by 1 before and 2 after against": lambda: hvd.allreduce(
            filled(1, 2), name="x", postscale_factor=2.0 + rank
        ),
        "2 tensors against 3": lambda: hvd.grouped_allreduce([filled(1, 2)] * (2 + rank), name="x"),
        r"allgather .*\[-1, 2\] .* against 'x' \[-1, 3\]": lambda: hvd.allgather(filled(1, 2, 2 + rank), name="x"),
        "allgather .*int32 against .*float32": lambda: hvd.allgather(filled(1, 2, dtype=either), name="x"),
        "broadcast .* root 0 against root 1": lambda: hvd.broadcast(filled(1, LARGE), rank, name="x"),
        r"broadcast .*\[4\] .* against 'x' \[5\]": lambda: hvd.broadcast(filled(1, 4 + rank), 0, name="x"),
        r"alltoall .*\[-1, 2\] .* against 'x' \[-1, 3\]": lambda: hvd.alltoall(filled(1, 4, 2 + rank), name="x"),
        r"reducescatter .*\[4\] .* against 'x' \[6\]": lambda: hvd.reducescatter(filled(1, 4 + 2 * rank), name="x"),
        "ranks do different things in 'noname.*': rank 0 calls allreduce, rank 1 allgather": lambda: (
            hvd.allgather if rank else hvd.allreduce
        )(filled(1, 2)),
        "root 0 against root 1": lambda: hvd.broadcast_object({}, rank),
    }


@on_workers(2)
def test_a_difference_is_an_error_on_all_ranks_and_ends_that_operation_only(rank: int) -> None:
    waiting = hvd.allreduce_async(filled(rank, LARGE), name="before", op=hvd.Sum)
    for words, call in differing(rank).items():
        with pytest.raises(RuntimeError, match=words) as caught:
            call()  # type: ignore[operator]
        assert isinstance(caught.value, hvd.HorovodInternalError)
        assert isinstance(caught.value, MismatchError)
    assert (hvd.synchronize(waiting) == 1).all()
    assert hvd.allreduce(filled(rank, 5), op=hvd.Sum, name="x").tolist() == [1] * 5


@on_workers(2)
def test_impossible_calls_are_refused_at_once(rank: int) -> None:
    rows = filled(1, 3, 2)
    for words, call in {
        "evenly among 2 ranks: give splits": lambda: hvd.alltoall(rows),
        "with splits .* give one number for each rank": lambda: hvd.alltoall(rows, splits=[1, 1]),
        "whole numbers as splits": lambda: hvd.alltoall(rows, splits=torch.tensor([1.0, 2.0])),
        "there is no root_rank 2": lambda: hvd.broadcast(rows, 2),
        "without dimensions": lambda: hvd.allgather(torch.tensor(1)),
        "Adasum is not supported, because it is not an exact sum": lambda: hvd.allreduce(rows, op=hvd.Adasum),
        "allreduce of truth values, which have no mean": lambda: hvd.allreduce(rows > 0),
        "reducescatter of truth values": lambda: hvd.reducescatter(rows > 0),
        "op 17 is unknown": lambda: hvd.allreduce(rows, op=17),
        "both op and average": lambda: hvd.allreduce(rows, True, op=hvd.Sum),
        "takes tensors, not float": lambda: hvd.allreduce_async_(1.0),  # type: ignore[arg-type]
        "allreduce takes tensors, not int": lambda: hvd.allreduce(1),  # type: ignore[arg-type]
        "allreduce takes tensors, not ndarray": lambda: hvd.grouped_allreduce([np.ones(2)]),  # type: ignore[list-item]
        "broadcast takes tensors, not NoneType": lambda: hvd.broadcast(None, 0),  # type: ignore[arg-type]
        "use sparse_allreduce_async": lambda: hvd.allreduce_async_(rows.to_sparse()),
        "adding process sets .* needs HOROVOD_DYNAMIC_PROCESS_SETS=1": lambda: hvd.add_process_set([0]),
    }.items():
        with pytest.raises(ValueError, match=words) as caught:
            call()
        assert isinstance(caught.value, ConfigError)
    with pytest.raises(
        NotImplementedError, match=r"hvd\.elastic: elastic training is not supported yet: .*checkpoints"
    ):
        hvd.elastic  # noqa: B018
    assert not hasattr(hvd, "elastic")
    with pytest.raises(DeprecationWarning, match=r"use op=hvd\.Average"):
        hvd.allreduce(rows, average=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (hvd.allreduce(rows, average=False) == 2).all()
        assert (hvd.allreduce(rows, average=True) == 1).all()


@on_workers(3)
def test_several_tensors_in_one_operation(rank: int) -> None:
    tensors = [filled(rank, 3), filled(10 + rank, LARGE), filled(rank, 4, dtype=torch.int64), filled(1, 2, 5)]
    expected = [1.0, 11.0, 1, 1.0]
    for results in (hvd.grouped_allreduce(tensors), hvd.synchronize(hvd.grouped_allreduce_async(tensors, name="g"))):
        assert [result[..., 0].flatten()[0].item() for result in results] == expected
        assert [result.dtype for result in results] == [tensor.dtype for tensor in tensors]
    small = hvd.grouped_allreduce(tensors[2:], op=hvd.Max)
    assert [result.flatten()[0].item() for result in small] == [2, 1]
    assert hvd.grouped_allreduce_(tensors)[0] is tensors[0]
    assert [tensor.flatten()[0].item() for tensor in tensors] == expected
    first, second = hvd.grouped_allgather([filled(rank, rank + 1), filled(rank, 2, 3, dtype=torch.int8)])
    assert first.tolist() == [0, 1, 1, 2, 2, 2]
    assert second[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


@on_workers(3)
def test_rows_of_all_ranks_are_gathered_whatever_their_number(rank: int) -> None:
    for dtype, width in itertools.product((*FLOATS, *WHOLE, *OTHERS, torch.bool, torch.complex64), ((), (2, 3), (0,))):
        counts = [17, 0, 5]
        result = hvd.allgather(torch.full((counts[rank], *width), float(rank)).to(dtype))
        assert result.dtype is dtype
        assert result.shape == (22, *width)
        expected = torch.tensor([0.0] * 17 + [2.0] * 5).to(dtype)
        assert all(torch.equal(column, expected) for column in result.reshape(22, -1).unbind(1))
    large = hvd.allgather(filled(rank, 1000 * (rank + 1), 100))
    assert large.shape == (6000, 100)
    assert large.sum() == 100 * (2000 + 2 * 3000)


@on_workers(3)
def test_any_tensor_is_broadcast_from_any_root(rank: int) -> None:
    types = (*FLOATS, *WHOLE, *OTHERS, torch.bool, torch.complex128)
    for dtype, root, shape in itertools.product(types, range(3), ((), (3, 2), (0,), (LARGE,))):
        own = filled(rank, *shape, dtype=dtype)
        expected = filled(root, *shape, dtype=dtype)
        before = own.clone()
        assert torch.equal(hvd.broadcast(own, root), expected)
        assert torch.equal(own, before)
        assert hvd.broadcast_(own, root) is own
        assert torch.equal(own, expected)
    columns = filled(rank, 300, 50).t()  # not contiguous
    assert (hvd.broadcast_(columns, 1) == 1).all()
    assert (hvd.allreduce_(columns * (rank + 1)) == 2).all()


@on_workers(3)
def test_each_rank_gets_its_rows_of_all(rank: int) -> None:
    even = torch.arange(6).repeat(3).reshape(18) + 100 * rank
    assert hvd.alltoall(even)[::6].tolist() == [0, 100, 200]
    splits = torch.tensor([rank, 0, 2], dtype=torch.int32)
    own = filled(rank, rank + 2, 4)
    result, received = hvd.alltoall(own, splits=splits)
    assert received.dtype is torch.int32
    assert received.tolist() == [[0, 1, 2], [0, 0, 0], [2, 2, 2]][rank]
    assert result[:, 0].tolist() == [[1, 2, 2], [], [0, 0, 1, 1, 2, 2]][rank]
    result, received = hvd.synchronize(hvd.alltoall_async(filled(rank, 3), name="a"))
    assert (result.tolist(), received.tolist()) == ([0, 1, 2], [1, 1, 1])


@on_workers(3)
def test_each_rank_gets_its_rows_of_the_reduction(rank: int) -> None:
    own = torch.arange(7.0).unsqueeze(1).repeat(1, 2) * (rank + 1)
    rows = ([0.0, 1.0, 2.0], [3.0, 4.0], [5.0, 6.0])[rank]  # the first ranks get one more
    assert hvd.reducescatter(own)[:, 1].tolist() == [2 * row for row in rows]
    assert hvd.reducescatter(own, op=hvd.Sum, prescale_factor=0.5)[:, 0].tolist() == [3 * row for row in rows]
    assert hvd.reducescatter(own, op=hvd.Max)[:, 0].tolist() == [3 * row for row in rows]
    assert hvd.synchronize(hvd.reducescatter_async(own, name="r"))[:, 0].tolist() == [2 * row for row in rows]
    few, many = hvd.grouped_reducescatter([filled(rank, 2), filled(rank, 3000, 10)])
    assert few.shape == ((1,), (1,), (0,))[rank]
    assert many.shape == (1000, 10)
    assert (many == 1).all()
    first, second = hvd.synchronize(hvd.grouped_reducescatter_async([own, own]))
    assert torch.equal(first, second)


@on_workers(2)
def test_gradients_flow_through_operations(rank: int) -> None:
    size = 2

    def gradient_of(call: object, rows: int = 4, scale: float = 1.0) -> torch.Tensor:
        own = torch.ones(rows, 3, dtype=torch.float64, requires_grad=True)
        result = call(own)  # type: ignore[operator]
        result.backward(torch.full_like(result, scale))
        assert own.grad is not None
        return own.grad

    assert (gradient_of(lambda own: hvd.allreduce(own, op=hvd.Sum)) == size).all()
    assert (gradient_of(lambda own: hvd.allreduce(own)) == 1).all()
    assert (gradient_of(lambda own: hvd.allreduce(own, prescale_factor=3.0)) == 3).all()
    assert (gradient_of(lambda own: sum(hvd.grouped_allreduce([own, 2 * own]))) == 3).all()
    assert (gradient_of(hvd.allgather, rows=2 + rank, scale=1.0 + rank) == 1.5).all()
    assert (gradient_of(lambda own: hvd.broadcast(own, 1), scale=1.0 + rank) == 1.5 * rank).all()
    assert (gradient_of(hvd.reducescatter) == 1).all()
    assert (gradient_of(lambda own: hvd.reducescatter(own, op=hvd.Sum)) == size).all()
    assert (gradient_of(hvd.alltoall, scale=1.0 + rank)[:, 0] == torch.tensor([1.0, 1.0, 2.0, 2.0])).all()
    splits = [1, 3]
    assert (gradient_of(lambda own: hvd.alltoall(own, splits=splits)[0], scale=1.0 + rank)[0] == 1).all()


@on_workers(2)
def test_16_bit_compression_is_lossy_on_request(rank: int) -> None:
    own = filled(1 / 3, LARGE)
    half = own.half().float()
    assert torch.equal(hvd.allreduce(own, compression=hvd.Compression.fp16), half)
    assert torch.equal(hvd.allreduce(own), own)
    assert hvd.allreduce(torch.tensor([rank]), compression=hvd.Compression.fp16, op=hvd.Sum).tolist() == [1]
    small, kept = hvd.Compression.fp16.compress(own.double())
    assert small.dtype is torch.float16
    assert hvd.Compression.fp16.decompress(small, kept).dtype is torch.float64


@on_workers(2)
def test_sparse_tensors_are_summed_sparsely(rank: int) -> None:
    own = torch.sparse_coo_tensor([[rank, 3]], [[1.0, 2.0], [3.0, 4.0]], (5, 2), check_invariants=True)
    result = hvd.sparse_allreduce_async(own, name="s", op=hvd.Average)()
    expected = torch.zeros(5, 2)
    expected[0] = expected[1] = torch.tensor([0.5, 1.0])
    expected[3] = torch.tensor([3.0, 4.0])
    assert torch.equal(result.to_dense(), expected)
    empty = torch.sparse_coo_tensor(
        torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 2), (5, 2), check_invariants=True
    )
    total = hvd.synchronize(hvd.sparse_allreduce_async(own if rank else empty, name="s", op=hvd.Sum))
    assert total.to_dense().sum() == 10
    for rows, op, words in (
        (5 + rank, hvd.Sum, r"shape \[5, 2\].* against .*shape \[6, 2\]"),
        (5, (hvd.Sum, hvd.Average)[rank], "op Sum against .*op Average"),
    ):
        one = torch.sparse_coo_tensor([[rows - 1]], [[1.0, 2.0]], (rows, 2), check_invariants=True)
        with pytest.raises(MismatchError, match=words):
            hvd.sparse_allreduce_async(one, name="s", op=op)()


class Unreadable:
    """An object that can be pickled but not unpickled."""

    def __reduce__(self) -> Any:
        return float, ("unreadable",)


@on_workers(2)
def test_an_object_that_cannot_be_unpickled_releases_its_memory(rank: int) -> None:
    given_back = []
    with pytest.MonkeyPatch.context() as patch:
        release = ConnectedGroup.release
        patch.setattr(ConnectedGroup, "release", lambda group, pieces: given_back.append(release(group, pieces)))
        with pytest.raises(ValueError, match="could not convert"):
            hvd.allgather_object(Unreadable())
    assert len(given_back) == 1
    assert hvd.allgather_object(rank) == [0, 1]


@on_workers(2)
def test_truth_values_have_extremes_but_no_mean(rank: int) -> None:
    own = torch.tensor([True, False, rank == 0])
    for op, expected in ((hvd.Max, [True, False, True]), (hvd.Min, [True, False, False])):
        assert hvd.allreduce(own, op=op).tolist() == expected


@on_workers(3)
def test_objects_are_sent_whole(rank: int) -> None:
    told = {"hello": [1, (2, "three")], "array": np.arange(5000)}
    heard = hvd.broadcast_object(told if rank == 1 else None, root_rank=1)
    assert heard["hello"] == told["hello"]
    assert (heard["array"] == told["array"]).all()
    assert hvd.allgather_object({"rank": rank, "rows": [0] * rank}) == [
        {"rank": other, "rows": [0] * other} for other in range(3)
    ]
    hvd.barrier()


@on_workers(3)
def test_ranks_without_data_add_zeros_until_all_have_none(rank: int) -> None:
    for lap in range(2):
        for step in range(rank + 1):  # rank 0 runs out first, rank 2 last
            active = 3 - step
            assert (hvd.allreduce(filled(1, LARGE), op=hvd.Sum) == active).all()
            assert (hvd.allreduce(filled(3, 2), name="mean", op=hvd.Average) == active).all()
            if rank == 2 and step == 2:
                with pytest.raises(RuntimeError, match="needs all ranks, but ranks 0 and 1 have run out of input"):
                    hvd.allgather(filled(1, 2))
                for call in (lambda: hvd.broadcast(filled(1, 2), 2), lambda: hvd.allreduce(filled(1, 2), op=hvd.Min)):
                    with pytest.raises(RuntimeError, match="have run out of input"):
                        call()
        assert hvd.join() == 2
        assert hvd.allgather(filled(lap, 1), name=f"lap {lap}").tolist() == [lap] * 3


@on_workers(2)
def test_ranks_and_sizes(rank: int) -> None:
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (rank, 2, rank, 2)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    assert not any(
        (hvd.mpi_built(), hvd.mpi_enabled(), hvd.gloo_built(), hvd.nccl_built(), hvd.mpi_threads_supported())
    )
    assert (hvd.global_process_set.ranks, hvd.global_process_set.included()) == ([0, 1], True)
    hvd.init()  # changes nothing
    hvd.allreduce_async(torch.zeros(3), name="left behind")
    hvd.barrier()
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match=r"call hvd\.init\(\) first"):
        hvd.rank()
    hvd.init()
    assert hvd.allreduce(filled(rank, 3), op=hvd.Sum).tolist() == [1] * 3


@on_workers(2, init=False)
def test_nothing_of_a_job_stays_when_its_worker_leaves(rank: int) -> None:
    for leave in (hvd.shutdown, undertow.shutdown):
        hvd.init()
        parameter = torch.nn.Parameter(torch.zeros(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1))
        handle = hvd.allreduce_async(torch.zeros(3), name="left behind")
        hvd.barrier()
        assert joining._tables
        leave()
        assert not handles._operations
        assert not handles._under_way
        assert not joining._tables
        assert hvd.synchronize(handle) is None
        del optimizer


def synchronize_in_child(handle: int) -> str:
    """Return the error that a forked process gets."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            try:
                hvd.synchronize(handle)
            except hvd.HorovodInternalError as error:
                os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read) as answer:
        return answer.read()


@on_workers(2)
def test_a_forked_process_cannot_wait_for_its_parents_operations(rank: int) -> None:
    if rank == 0:
        handle = hvd.allreduce_async(filled(1, 3), name="later", op=hvd.Sum)
        assert "this process was forked from a worker" in synchronize_in_child(handle)
    hvd.barrier()
    if rank == 1:
        handle = hvd.allreduce_async(filled(1, 3), name="later", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [2, 2, 2]


class Ranks(torch.utils.data.Dataset[Any]):
    """A dataset whose item lists the ranks and sizes of its process, in which calls must fail."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> list[Any]:
        numbers = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
        every = hvd.global_process_set
        with pytest.raises(RuntimeError, match="was forked from a worker") as caught:
            hvd.allreduce(torch.ones(1))
        assert isinstance(caught.value, ConfigError)
        with pytest.raises(RuntimeError, match="was forked from a worker"):
            hvd.barrier()
        return [*numbers, hvd.is_initialized(), hvd.is_homogeneous(), every.rank(), every.size(), every.included()]


@on_workers(2, init=False)
def test_data_loader_workers_know_their_rank(rank: int) -> None:
    hvd.init()
    loader = torch.utils.data.DataLoader(Ranks(), batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert list(loader) == [[rank, 2, rank, 2, 0, 1, True, True, rank, 2, True]]
    assert hvd.allreduce(filled(rank, 3), op=hvd.Sum).tolist() == [1] * 3
    hvd.barrier()
    hvd.shutdown()
    with pytest.raises(Exception, match=r"call hvd\.init\(\) first"):
        list(loader)


@on_workers(1)
def test_a_single_rank_is_a_job_too(rank: int) -> None:
    own = filled(3, LARGE)
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Adasum):
        assert torch.equal(hvd.allreduce(own, op=op), own)
    assert torch.equal(hvd.allgather(own), own)
    assert torch.equal(hvd.reducescatter(own), own)
    assert torch.equal(hvd.alltoall(own), own)
    assert torch.equal(hvd.broadcast(own, 0), own)
    assert hvd.join() == 0


@on_workers(2)
def test_tensors_of_different_types_may_be_unaligned(rank: int) -> None:
    types = (torch.float32, torch.complex64, torch.int8, torch.bfloat16, torch.complex128, torch.float64, torch.float16)
    for order in (types, types[::-1], (torch.float32, torch.complex64), (torch.float64, torch.complex128)):
        own = [filled(2 * rank + 2, size, dtype=dtype) for dtype in order for size in (1, 3, 5)]
        for results in (hvd.grouped_allreduce(own), [hvd.allreduce(one) for one in own]):
            assert [(one.dtype, one.shape) for one in results] == [(one.dtype, one.shape) for one in own]
            assert all((one == 3).all() for one in results)
        gathered = hvd.grouped_allgather(own)
        assert all(one.tolist() == [2] * (len(one) // 2) + [4] * (len(one) // 2) for one in gathered)
        for one in own:
            assert (hvd.broadcast(one, root_rank=1) == 4).all()
            assert hvd.alltoall(one[:1].repeat(2)).tolist() == [2, 4]
            assert (hvd.reducescatter(one.repeat(2), op=hvd.Sum) == 6).all()
        hvd.broadcast_parameters([(str(place), one) for place, one in enumerate(own)], root_rank=1)
        assert all((one == 4).all() for one in own)
        views = [torch.cat([filled(0, 1, dtype=one.dtype), one])[1:] for one in own]  # not at the start of their memory
        assert all((one == 8).all() for one in hvd.grouped_allreduce(views, op=hvd.Sum))


class Phases(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.ones(3))
        self.phase = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))

    def forward(self, factor: float) -> torch.Tensor:
        return (self.shift * factor).sum() + torch.view_as_real(self.phase * factor).sum()


@on_workers(2)
def test_an_optimizer_averages_unaligned_complex_gradients(rank: int) -> None:
    model = Phases()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
    )
    model(2.0 * (rank + 1)).backward()
    optimizer.step()
    assert (model.shift == -2).all()
    assert (model.phase == -2 - 3j).all()
