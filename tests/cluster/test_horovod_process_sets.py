"""Horovod's process sets on real workers: calls of some ranks, in which the others take no part."""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import signal
import weakref
from typing import Any

import pytest
import torch

from tests.support.workers import RETURNED, on_workers, outcomes_of, run_workers
from undertow.engine.client import formation
from undertow.errors import ConfigError, MismatchError, PeerLost
from undertow.horovod import torch as hvd
from undertow.horovod.torch.process_sets import own_groups
from undertow.runtime import process
from undertow.runtime.subsets import SubsetError

LARGE = 30_000  # several slices


def filled(value: float, *shape: int) -> torch.Tensor:
    return torch.full(shape, float(value))


def three_workers(rank: int) -> None:
    first, second, alone, middle = sets = [hvd.ProcessSet(ranks) for ranks in ([1, 0], [1, 2], [2], [1])]
    assert [one.process_set_id for one in sets] == [None] * 4
    assert (first.size(), first.rank()) == (None, None)
    hvd.init(process_sets=sets)
    hvd.init(process_sets=sets)  # changes nothing
    hvd.init()
    assert [one.process_set_id for one in (hvd.global_process_set, *sets)] == [0, 1, 2, 3, 4]
    known = {0: [0, 1, 2], 1: [0, 1], 2: [1, 2], 3: [2], 4: [1]}
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == known
    assert [one.ranks for one in sets] == [[0, 1], [1, 2], [2], [1]]
    assert [one.included() for one in sets] == [rank in one.ranks for one in sets]
    assert hvd.global_process_set.ranks == [0, 1, 2]
    own = [one for one in sets if one.included()]
    for one in own:
        assert (one.size(), one.rank()) == (len(one.ranks), one.ranks.index(rank))
    check_values(rank, own)
    check_names(rank, first, second)
    check_gradients(rank, own)
    check_refusals(rank, first, second, alone, middle)
    hvd.barrier()


def check_values(rank: int, own: list[Any]) -> None:
    """Check every operation in each set that contains this rank, with the sizes that take each route."""
    for one in own:
        ranks, size = one.ranks, len(one.ranks)
        for rows in (6, LARGE):
            value = filled(rank + 1, rows)
            total = float(sum(ranks) + size)
            assert (hvd.allreduce(value, op=hvd.Sum, process_set=one) == total).all()
            assert torch.allclose(hvd.allreduce(value, process_set=one), filled(total / size, rows))
            assert (hvd.allreduce(value.int(), op=hvd.Average, process_set=one) == int(total / size)).all()
            assert (hvd.allreduce_(value.clone(), op=hvd.Max, process_set=one) == max(ranks) + 1).all()
            both = hvd.grouped_allreduce([value, 2 * value], op=hvd.Sum, process_set=one)
            assert [part[0] for part in both] == [total, 2 * total]
            gathered = hvd.allgather(value, process_set=one)
            assert gathered.view(size, rows)[:, 0].tolist() == [other + 1 for other in ranks]
            for root in ranks:
                assert (hvd.broadcast(value, root, process_set=one) == root + 1).all()
            scattered = hvd.reducescatter(value, op=hvd.Sum, process_set=one)
            assert scattered.shape == (rows // size,)
            assert (scattered == total).all()
        shared, received = hvd.alltoall(filled(rank, size), torch.ones(size, dtype=torch.int32), process_set=one)
        assert (shared.tolist(), received.tolist()) == (ranks, [1] * size)
        assert hvd.allgather_object(rank, process_set=one) == ranks
        assert hvd.broadcast_object(rank, root_rank=ranks[-1], process_set=one) == ranks[-1]
        sparse = torch.sparse_coo_tensor([[one.rank()]], [1.0], (size,), check_invariants=True)
        summed = hvd.synchronize(hvd.sparse_allreduce_async(sparse, name="s", op=hvd.Average, process_set=one))
        assert torch.equal(summed.to_dense(), filled(1 / size, size))
        parameters = {"weight": filled(rank, 3)}
        hvd.broadcast_parameters(parameters, ranks[0], process_set=one)
        assert (parameters["weight"] == ranks[0]).all()
        hvd.barrier(process_set=one)


def check_names(rank: int, first: Any, second: Any) -> None:
    """Check that one name can be pending in two sets and among all ranks at once."""
    sets = [one for one in (hvd.global_process_set, first, second) if one.included()]
    order = sets if rank == 1 else sets[::-1]
    started = {id(one): hvd.allreduce_async(filled(1, 4), name="x", op=hvd.Sum, process_set=one) for one in order}
    unnamed = [hvd.allreduce_async(filled(1, 4), op=hvd.Sum, process_set=one) for one in order]
    assert [hvd.synchronize(started[id(one)])[0] for one in sets] == [one.size() for one in sets]
    assert [hvd.synchronize(handle)[0] for handle in unnamed] == [one.size() for one in order]


def check_gradients(rank: int, own: list[Any]) -> None:
    for one in own:
        size = len(one.ranks)
        for call, expected in (
            (lambda value: hvd.allreduce(value, op=hvd.Sum, process_set=one), size),  # noqa: B023
            (lambda value: hvd.allgather(value, process_set=one), 1),  # noqa: B023
            (lambda value: hvd.broadcast(value, one.ranks[0], process_set=one), one.rank() == 0),  # noqa: B023
            (lambda value: hvd.reducescatter(value, op=hvd.Sum, process_set=one), size),  # noqa: B023
            (lambda value: hvd.alltoall(value, process_set=one), 1),  # noqa: B023
        ):
            value = torch.ones(2 * size, 3, requires_grad=True)
            call(value).sum().backward()
            assert value.grad is not None
            assert (value.grad == expected).all()


def check_refusals(rank: int, first: Any, second: Any, alone: Any, middle: Any) -> None:
    for one in (first, second, alone, middle):
        if not one.included():
            with pytest.raises(RuntimeError, match=rf"rank {rank} is not in the process set of ranks? ") as caught:
                hvd.allreduce(filled(1, 2), process_set=one)
            assert isinstance(caught.value, ConfigError)
    if rank < 2:
        with pytest.raises(ValueError, match="root_rank 2 is not in the process set of ranks 0 and 1"):
            hvd.broadcast(filled(1, 2), 2, process_set=first)
    if rank > 0:
        with pytest.raises(MismatchError, match="ranks 1 and 2 differ in allreduce"):
            hvd.allreduce(filled(1, rank), name="differs", process_set=second)
    for stranger in (hvd.ProcessSet([0, 2]), [0, 1], None):
        with pytest.raises(ValueError, match="not a process set that was given to"):
            hvd.allreduce(filled(1, 2), process_set=stranger)
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS=1"):
        hvd.add_process_set([0, 2])
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS=1"):
        hvd.remove_process_set(first)
    with pytest.raises(ValueError, match="list of ranks"):
        hvd.ProcessSet("01")
    with pytest.raises(ValueError, match="list of ranks"):
        hvd.ProcessSet(7)


def test_sets_of_three_workers_have_calls_of_their_own() -> None:
    run_workers(3, three_workers, init=False)


@on_workers(2, init=False)
def test_a_second_init_finds_the_existing_sets(rank: int) -> None:
    assert (hvd.global_process_set.ranks, str(hvd.global_process_set)) == ([], "ProcessSet(process_set_id=0, ranks=[])")
    first, again, new = hvd.ProcessSet([0]), hvd.ProcessSet([0]), hvd.ProcessSet([1])
    hvd.init(process_sets=[first])
    assert (hvd.global_process_set.ranks, hvd.global_process_set.size()) == ([0, 1], 2)
    hvd.init(process_sets=[new, again])
    assert [one.process_set_id for one in (first, again, new)] == [1, 1, 2]
    own = (first, again) if rank == 0 else (new,)
    for one in own:
        assert hvd.allgather_object(rank, process_set=one) == [rank]
    for wrong in (first, 3, [[0]], [first, None], "static"):
        with pytest.raises(ValueError, match=r'takes a list of hvd.ProcessSet, or "dynamic", as process_sets'):
            hvd.init(process_sets=wrong)
    with pytest.raises(ValueError, match="rank 0 is in the list twice"):
        hvd.init(process_sets=[first, again])


@on_workers(2, init=False)
def test_a_copy_of_a_removed_set_is_not_a_set(rank: int) -> None:
    hvd.init(process_sets="dynamic")
    removed = hvd.add_process_set([0])
    copies = [copy.deepcopy(removed), pickle.loads(pickle.dumps(removed))]  # noqa: S301
    if rank == 0:
        assert [hvd.allgather_object(rank, process_set=one) for one in copies] == [[0], [0]]
    assert hvd.remove_process_set(copies.pop())
    assert hvd.add_process_set([1]).process_set_id == 1  # the number of the removed one
    for one in (removed, *copies):
        with pytest.raises(ValueError, match="or it was removed"):
            hvd.allgather_object(rank, process_set=one)
        assert not hvd.remove_process_set(one)
        assert one.process_set_id is None
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0, 1], 1: [1]}


def dynamic(rank: int) -> None:
    hvd.init(process_sets="dynamic")
    assert not hvd.remove_process_set(hvd.global_process_set)
    removed = []
    for _ in range(3):
        outer = hvd.add_process_set([2, 0])
        inner = hvd.add_process_set(hvd.ProcessSet([1]))
        assert (outer.process_set_id, inner.process_set_id) == (1, 2)
        for ranks in ([0, 2], [1], [0, 1, 2]):
            with pytest.raises(ValueError, match="already exists"):
                hvd.add_process_set(ranks)
        removed += [weakref.ref(group) for group in own_groups()]
        if outer.included():
            assert (hvd.allreduce(filled(rank, LARGE), op=hvd.Sum, process_set=outer) == 2).all()
        assert hvd.remove_process_set(outer)
        assert hvd.remove_process_set(inner)
        assert (outer.process_set_id, outer.size(), outer.rank()) == (None, None, None)
        assert not hvd.remove_process_set(outer)
        with pytest.raises(ValueError, match="not a process set that was given to"):
            hvd.barrier(process_set=outer)
    gc.collect()
    assert [ref() for ref in removed] == [None] * 3  # no reference to them is kept
    with pytest.raises(
        MismatchError, match=r"ranks 0 and 1 differ in add_process_set .*set \[0\] against process set \[1"
    ):
        hvd.add_process_set([rank])
    for ranks, words in (([0, 3], "there is no rank 3"), ([], "no ranks"), ([1, 1], "rank 1 more than once")):
        with pytest.raises(ValueError, match=words):
            hvd.add_process_set(ranks)
    kept = hvd.add_process_set([0, 1])
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), process_set=kept)
    if rank == 0:
        late = hvd.allreduce_async(filled(1, 3), name="late", process_set=kept)
        with pytest.raises(ValueError, match=r"'allreduce\.late' is pending in this process set"):
            hvd.remove_process_set(kept)
    hvd.barrier()
    if rank == 1:
        late = hvd.allreduce_async(filled(1, 3), name="late", process_set=kept)
    if kept.included():
        hvd.synchronize(late)
        left = hvd.allreduce_async(filled(1, 3), name="left", op=hvd.Sum, process_set=kept)
        hvd.barrier(process_set=kept)
        while not hvd.poll(left):
            pass
    assert hvd.remove_process_set(kept)
    weight.sum().backward()
    if rank < 2:
        assert hvd.synchronize(left)[0] == 2  # the operation had ended before the set was removed
        with pytest.raises(RuntimeError, match="the process set of ranks 0 and 1 was removed"):
            optimizer.step()
    assert hvd.join() in range(3)  # not in the removed set
    hvd.shutdown()
    hvd.init(process_sets=[hvd.ProcessSet([1, 2])])
    assert hvd.allreduce(filled(1, 2), op=hvd.Sum).tolist() == [3, 3]


def test_sets_are_added_and_removed_while_the_job_runs() -> None:
    run_workers(3, dynamic, init=False, over_tcp=True)


def unlike(rank: int) -> None:
    with pytest.raises(MismatchError, match=r"hvd.init .*process sets \[0\] against no process sets"):
        hvd.init(process_sets=None if rank else [hvd.ProcessSet([0])])
    for bad, words in (
        ([hvd.ProcessSet([0]), hvd.ProcessSet([0])], "rank 0 is in the list twice"),
        ([hvd.ProcessSet([1, 0])], "ranks 0 and 1 already exists"),
    ):
        with pytest.raises(ValueError, match=words):
            hvd.init(process_sets=bad)
    good = [hvd.ProcessSet([0]), hvd.ProcessSet(reversed(range(1, 2)))]
    hvd.init(process_sets=good)
    assert [one.process_set_id for one in good] == [1, 2]
    assert (hvd.allreduce(filled(rank, 2), process_set=good[rank]) == rank).all()


def test_different_sets_are_an_error() -> None:
    run_workers(2, unlike, init=False)


def train(rank: int) -> list[Any]:
    hvd.init(process_sets=(pair := [hvd.ProcessSet([1, 2])]))
    model = torch.nn.Sequential(torch.nn.Linear(4, 300), hvd.SyncBatchNorm(300, process_set=pair[0]))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), process_set=pair[0], backward_passes_per_step=1
    )
    torch.manual_seed(rank)
    for _ in range(2 + 2 * (rank > 0)):  # the rank that is not in the set makes fewer steps
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
    if rank:
        states = hvd.allgather_object([value.tolist() for value in model.state_dict().values()], process_set=pair[0])
        assert states[0] == states[1]
        hvd.broadcast_optimizer_state(optimizer, root_rank=2, process_set=pair[0])
        for step in range(rank):  # and one of the two more than the other
            optimizer.zero_grad()
            model[0](torch.full((8, 4), 1.0)).sum().backward()
            optimizer.step()
            if step == 1:
                assert (hvd.allreduce(filled(1, 3), op=hvd.Sum, process_set=pair[0]) == 1).all()
    assert hvd.join() in range(3)
    optimizer.zero_grad()
    model[0](torch.full((8, 4), 1.0)).sum().backward()
    optimizer.step()
    return [value.tolist() for value in model.state_dict().values()]


def test_an_optimizer_trains_the_ranks_of_its_set_alike() -> None:
    outside, first, second = run_workers(3, train, init=False)
    assert first[4:] == second[4:]  # the running statistics
    assert outside != first


def end_early(rank: int) -> float:
    """Let ranks 0 and 3, which are not in the pair, end before it continues; rank 0 leads the job."""
    pair, trio = hvd.ProcessSet([1, 2]), hvd.ProcessSet([0, 2, 3])
    hvd.init(process_sets=[pair, trio])
    for size in (3, LARGE):
        if trio.included():  # a sum that only the order of the ranks gives
            value = {0: 1e8, 2: -1e8, 3: 1.0}[rank]
            assert (hvd.allreduce(filled(value, size), op=hvd.Sum, process_set=trio) == 1).all()
    hvd.barrier()
    if rank in (0, 3):
        return 0.0
    wait_until_gone(process.default_group(), [0, 3])
    return float(sum(hvd.allreduce(filled(rank, LARGE), op=hvd.Sum, process_set=pair)[0] for _ in range(3)))


def wait_until_gone(group: Any, ranks: list[int]) -> None:
    while not set(ranks) <= set(group._control._membership.departed):
        os.sched_yield()


def test_the_end_of_other_ranks_does_not_end_a_set() -> None:
    assert run_workers(4, end_early, init=False) == [0.0, 9.0, 9.0, 0.0]


def leave_the_set(rank: int, dies: bool) -> None:
    hvd.init(process_sets=(pair := [hvd.ProcessSet([1, 2])]))
    if rank == 2 and dies:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        hvd.allreduce(filled(1, 2), name="x", process_set=pair[0])


@pytest.mark.parametrize("dies", [False, True])
def test_a_lost_member_is_named_by_its_rank_in_the_job(dies: bool) -> None:
    outcomes = outcomes_of(3, leave_the_set, dies, init=False)
    assert outcomes[0].kind == RETURNED
    assert outcomes[1].kind == "WorkerLost"
    assert "rank 2 on host" in outcomes[1].text
    assert "this is rank 1 " in outcomes[1].text


def no_transport(*args: Any, **options: Any) -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


def no_dialling(*args: Any, **options: Any) -> Any:
    raise PeerLost("the way is blocked")


def fail_late(*args: Any, **options: Any) -> Any:
    FORM(*args, **options).close("it changed its mind")
    raise ConfigError("it was complete")


FORM = formation.form
FAILURES = {"SocketTransport": no_transport, "_dial": no_dialling, "form": fail_late}


def form_badly(rank: int, part: str) -> str:
    hvd.init(process_sets="dynamic")
    kept = hvd.add_process_set([0, 2])
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(formation, part, FAILURES[part])
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.add_process_set(one := hvd.ProcessSet([0, 1]))
    assert isinstance(caught.value.__cause__, SubsetError)
    assert caught.value.__cause__.ranks == (1,)
    assert one.process_set_id is None
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0, 1, 2], 1: [0, 2]}
    assert len(process._groups) == (2 if kept.included() else 1)
    assert hvd.allreduce(filled(rank, 2), op=hvd.Sum).tolist() == [3, 3]
    assert hvd.add_process_set(one).process_set_id == 2
    if one.included():
        assert hvd.allreduce(filled(rank, 2), op=hvd.Sum, process_set=one).tolist() == [1, 1]
    hvd.barrier()
    return str(caught.value)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("SocketTransport", "rank 1: OSError: [Errno 24] Too many open files"),
        ("_dial", "rank 1: the way is blocked"),
        ("form", "rank 1: it was complete"),
    ],
)
def test_a_set_that_one_rank_cannot_join_exists_on_no_rank(part: str, words: str) -> None:
    told = run_workers(3, form_badly, part, init=False, environment={"UNDERTOW_SILENCE_TIMEOUT": "2"})
    assert len(set(told)) == 1
    assert told[0].startswith(f"ranks 0 and 1 cannot form a group: {words}")


@on_workers(1)
def test_a_single_rank_may_have_sets_too(rank: int) -> None:
    hvd.init(process_sets="dynamic")
    with pytest.raises(ValueError, match="rank 0 already exists"):
        hvd.add_process_set([0])
    assert hvd.global_process_set.included()
