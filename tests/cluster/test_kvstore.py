"""The key-value store: sums over all workers, numpy in and out, asynchronous until `wait`."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import undertow
from tests.support.workers import on_workers
from undertow import kvstore

LARGE = 600_000  # several slices


@on_workers(3)
def test_the_initial_value_is_that_of_rank_0(rank: int) -> None:
    kv = kvstore.create()
    assert (kv.rank, kv.world_size) == (rank, 3)
    for key, size in (("small", 3), ("large", LARGE)):
        kv.init(key, np.full(size, 7 + rank, np.float32))
        out = np.zeros(size, np.float32)
        kv.pull(key, out).wait()
        assert (out == 7).all()
    undertow.barrier()  # a shard ends with its worker


@on_workers(3)
def test_a_push_makes_the_value_the_sum_over_all_workers(rank: int) -> None:
    kv = kvstore.create()
    for key, size in ((1, 3), (("layer", 2), LARGE)):
        kv.init(key, np.zeros(size))
        out = np.zeros(size)
        kv.push(key, np.full(size, 1.0 + rank))
        kv.pull(key, out=out)
        kv.wait()
        assert (out == 6).all()
    undertow.barrier()


@on_workers(3)
def test_pushpull_does_both_and_may_work_in_place(rank: int) -> None:
    kv = kvstore.create()
    kv.init("w", np.zeros(LARGE, np.float32))
    value = np.full(LARGE, 2.0**rank, np.float32)
    out = np.empty_like(value)
    handle = kv.pushpull("w", value, out=out)
    handle.wait()
    assert handle.is_done
    assert (out == 7).all()
    assert (value == 2.0**rank).all()
    kv.pushpull("w", value, out=value).wait()
    assert (value == 7).all()


@on_workers(2)
def test_many_operations_on_one_key_stay_in_order(rank: int) -> None:
    kv = kvstore.create()
    kv.init("w", np.zeros(4))
    values = [np.full(4, float(step)) for step in range(10)]
    outs = [np.zeros(4) for _ in range(20)]
    for step, value in enumerate(values):
        kv.pushpull("w", value, out=outs[2 * step])
        kv.pull("w", out=outs[2 * step + 1])  # includes all own earlier pushes, and no later ones
    kv.wait()
    assert [out[0] for out in outs] == [2.0 * (step // 2) for step in range(20)]
    undertow.barrier()


@on_workers(2)
def test_all_summable_types_work(rank: int) -> None:
    kv = kvstore.create()
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32):
        value = np.arange(5).astype(dtype)
        out = np.zeros(5, dtype)
        kv.init(np.dtype(dtype).name, value)
        kv.pushpull(np.dtype(dtype).name, value, out=out).wait()
        assert out.dtype == dtype
        assert (out == (2 * np.arange(5)).astype(dtype)).all()


@on_workers(2)
def test_large_integers_are_exact(rank: int) -> None:
    kv = kvstore.create()
    kv.init("n", np.zeros(1, np.int64))
    out = np.zeros(1, np.int64)
    kv.pushpull("n", np.array([2**60 + rank]), out=out).wait()
    assert out[0] == 2**61 + 1


@on_workers(2)
def test_arrays_may_have_any_shape_and_layout(rank: int) -> None:
    kv = kvstore.create()
    kv.init("matrix", np.zeros((4, 6)))
    value = np.arange(48.0).reshape(6, 8).T[::2]  # every second row of a transposed array
    for out in (np.zeros((4, 6), order="F"), np.zeros((8, 12))[::2, ::2], np.zeros((4, 6))):
        kv.pushpull("matrix", value, out=out).wait()
        assert (out == 2 * value).all()
    for key, shape in (("scalar", ()), ("empty", (0, 3))):
        kv.init(key, np.ones(shape))
        out = np.zeros(shape)
        kv.pushpull(key, np.ones(shape), out=out).wait()
        assert out.shape == shape
        assert (out == 2).all()


@on_workers(2)
def test_invalid_arguments_are_refused_before_anything_is_sent(rank: int) -> None:
    kv = kvstore.create()
    kv.init("w", np.zeros((2, 3), np.float32))
    good = np.ones((2, 3), np.float32)
    with pytest.raises(undertow.ConfigError, match="'v' is not known"):
        kv.push("v", good)
    with pytest.raises(undertow.ConfigError, match="initialised already"):
        kv.init("w", good)
    with pytest.raises(undertow.ConfigError, match=r"holds \[2, 3\] float32, not \[3, 2\] float32"):
        kv.push("w", good.T)
    with pytest.raises(undertow.ConfigError, match=r"not \[2, 3\] float64"):
        kv.pull("w", out=np.zeros((2, 3)))
    with pytest.raises(undertow.ConfigError, match="cannot be summed"):
        kv.init("text", np.array(["a"]))
    with pytest.raises(undertow.ConfigError, match="complex64 cannot be summed; use one of float64"):
        kv.init("pairs", np.zeros(3, np.complex64))
    fixed = np.zeros((2, 3), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(undertow.ConfigError, match="read-only"):
        kv.pull("w", out=fixed)
    out = np.zeros_like(good)
    kv.pushpull("w", good, out=out).wait()  # all ranks are still in step
    assert (out == 2).all()


@on_workers(2)
def test_ranks_that_init_different_keys_get_an_error(rank: int) -> None:
    kv = kvstore.create()
    with pytest.raises(undertow.MismatchError, match=r"'b' \[3\] float64|'a' \[3\] float64"):
        kv.init("ab"[rank], np.zeros(3))


@on_workers(2)
def test_priorities_change_nothing_but_the_order(rank: int) -> None:
    kv = kvstore.create()
    outs = [np.zeros(LARGE, np.float32) for _ in range(4)]
    for key in range(4):
        kv.init(key, outs[key])
    for key in range(4):
        kv.pushpull(key, np.full(LARGE, key, np.float32), out=outs[key], priority=-key)
    kv.wait()
    assert [out[-1] for out in outs] == [0, 2, 4, 6]


@on_workers(1)
def test_a_world_of_one_works_the_same(rank: int) -> None:
    kv = kvstore.create()
    kv.init("w", np.full(3, 5.0))
    out = np.zeros(3)
    kv.pull("w", out).wait()
    assert (out == 5).all()
    kv.pushpull("w", np.ones(3), out=out).wait()
    assert (out == 1).all()


@on_workers(3)
def test_a_worker_may_leave_with_its_last_pushes_in_flight(rank: int) -> None:
    kv = kvstore.create()
    outs = [np.zeros(4) for _ in range(3)]
    for key in range(3):  # one on each shard
        kv.init(key, outs[key])
    undertow.barrier()
    if rank == 0:
        for key in range(3):
            kv.push(key, np.ones(4))
        return  # its own shard still lacks what the others push
    for key in range(3):
        kv.pushpull(key, np.ones(4), out=outs[key])
    kv.wait()
    assert [out[0] for out in outs] == [3.0] * 3
