"""Layouts of a table: each one covers everything, with keys that nothing else uses at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tests.support.fake_group import FakeGroup
from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import EVERYONE, Op
from undertow.engine.core.slicing import Chunking, Cut, Placement, TensorRange, TensorSpec, count_most, cut
from undertow.sizing import Sizes
from undertow.sync.table import Layout, Table

SIZES = Sizes(smallest=1024, largest=16384)
SHARDS = 3


def tensor(*shape: int, dtype: DType = DType.FLOAT32) -> TensorSpec:
    return TensorSpec(f"t {shape}", shape, dtype, int(np.prod(shape)))


SPECS = [tensor(100, 64), tensor(100), tensor(8, 3), tensor(3), tensor(0, 4), tensor(257, 33, dtype=DType.FLOAT64)]


def make_group(sizes: Sizes = SIZES) -> FakeGroup:
    return FakeGroup([1] * (SHARDS - 1), sizes=sizes)


def make_table(group: FakeGroup, specs: Sequence[TensorSpec] = SPECS, op: Op = Op.MEAN) -> Table:
    return Table(group, "some tensors", specs, op)


def keys_of(layout: Layout) -> set[int]:
    return {item.spec.key for item in layout.slices}


def check_covers(layout: Layout, specs: Sequence[TensorSpec], chunkings: Mapping[int, Chunking] | None = None) -> None:
    """Check that each element occurs once, and that factors for every worker have only chunks without elements."""
    marks = [np.zeros(spec.elements, int) for spec in specs]
    chunks: list[list[int]] = [[] for _ in specs]
    for item in layout.slices:
        if item.spec.op is Op.GATHER:
            assert (item.spec.elements, item.spec.dtype) == (0, DType.BYTES)
            assert not item.is_fused
            chunks[item.ranges[0].tensor].append(item.ranges[0].offset)
            continue
        assert item.spec.elements == sum(part.elements for part in item.ranges) > 0
        for part in item.ranges:
            marks[part.tensor][part.offset :][: part.elements] += 1
    for index in range(len(specs)):
        way = (chunkings or {}).get(index)
        is_for_all = way is not None and not way.to_shards
        assert (marks[index] == (0 if is_for_all else 1)).all()
        if way is None:
            assert not chunks[index]
        elif is_for_all:
            assert chunks[index] == list(range(way.chunks))


def most(index: int, *, to_shards: bool = False) -> Chunking:
    """Return the largest number of chunks that is ever needed."""
    chunks = count_most(SPECS[index], SIZES.smallest)
    return Chunking(max(1, chunks // SHARDS), to_shards) if to_shards else Chunking(chunks)


CUTS: list[Mapping[int, Chunking]] = [
    {},
    {0: Chunking(1)},
    {0: Chunking(3), 2: Chunking(1)},
    {0: most(0), 2: most(2), 5: most(5)},
    {0: most(0, to_shards=True), 2: most(2, to_shards=True), 5: most(5, to_shards=True)},
    {0: Chunking(2, to_shards=True), 5: Chunking(4)},
]


# Tables


@pytest.mark.parametrize("chunkings", CUTS)
@pytest.mark.parametrize("slice_bytes", [1024, 1040, 4096, 16384])
def test_a_new_layout_covers_everything(chunkings: Mapping[int, Chunking], slice_bytes: int) -> None:
    table = make_table(make_group())
    check_covers(table.first, SPECS)
    check_covers(table.recut(slice_bytes, chunkings), SPECS, chunkings)


@pytest.mark.parametrize("chunkings", CUTS)
def test_keys_of_two_layouts_and_of_the_first_never_overlap(chunkings: Mapping[int, Chunking]) -> None:
    """Nor with those of a table registered before or after."""
    group = make_group()
    before = make_table(group)
    table = make_table(group)
    after = make_table(group)
    taken = keys_of(table.first)
    for other in (before, after):
        others = keys_of(other.first) | keys_of(other.recut(1024, chunkings)) | keys_of(other.recut(1024, chunkings))
        assert not taken & others
        taken |= others
    earlier: set[int] = set()
    for round_number in range(5):
        keys = keys_of(table.recut(1024, CUTS[round_number] if round_number % 2 else chunkings))
        table.change()
        assert not keys & taken
        assert not keys & earlier
        earlier = keys


@pytest.mark.parametrize("chunkings", CUTS)
def test_keys_do_not_overlap_with_a_slice_size_given_by_the_user(chunkings: Mapping[int, Chunking]) -> None:
    """It may be smaller than any size that would be chosen."""
    group = make_group(Sizes(fixed=1024, smallest=64 << 10))
    table, after = make_table(group), make_table(group)
    first, second = keys_of(table.recut(1024, chunkings)), keys_of(table.recut(1024, chunkings))
    assert not keys_of(table.first) & first
    assert not keys_of(table.first) & second
    assert not first & second
    assert not (first | second) & keys_of(after.first)


def test_keys_are_reused_only_after_another_layout() -> None:
    table = make_table(make_group())
    first, second, third = (keys_of(table.recut(1024)) for _ in range(3))
    assert not first & second
    assert first == third


def test_a_layout_is_registered_when_prepared_and_used_after_the_change() -> None:
    group = make_group()
    table = make_table(group)
    made = table.recut(2048)
    assert group.learned == [made.slices]
    assert table.current is table.first
    table.change()
    assert table.current is made
    check_covers(table.first, SPECS)


def test_all_ranks_make_the_same_layout() -> None:
    for chunkings in CUTS:
        ours, theirs = (make_table(make_group()) for _ in range(2))
        assert ours.recut(2048, chunkings).slices == theirs.recut(2048, chunkings).slices


def test_a_tensor_has_slices_of_its_own_unless_it_is_fused_or_empty() -> None:
    table = make_table(make_group())
    layout = table.recut(4096, {0: Chunking(2)})
    assert [item.ranges for item in layout.own_slices[0]] == [(TensorRange(0, 0, 0, 0),), (TensorRange(0, 1, 0, 0),)]
    for index in (1, 2, 3):
        assert not layout.own_slices[index]
    assert [[part.tensor for part in item.ranges] for item in layout.slices if item.is_fused] == [[1, 2, 3]]
    assert not layout.own_slices[4]
    assert sum(item.spec.elements for item in layout.own_slices[5]) == SPECS[5].elements


def test_chunks_for_every_worker_have_no_shard() -> None:
    layout = make_table(make_group()).recut(4096, {0: Chunking(3), 5: Chunking(2, to_shards=True)})
    for_all = [item.spec for item in layout.own_slices[0]]
    assert {(spec.owner, spec.op, spec.elements) for spec in for_all} == {(EVERYONE, Op.GATHER, 0)}
    to_shards = [item.spec for item in layout.own_slices[5]]
    assert {spec.owner for spec in to_shards if spec.op is Op.GATHER} == set(range(SHARDS))
    assert {spec.owner for spec in to_shards if spec.op is Op.MEAN} == set(range(SHARDS))


def test_a_gathered_table_has_one_key_per_tensor_of_any_size() -> None:
    """Such as the table of reports, whose sizes are unknown in advance."""
    table = make_table(make_group(), [TensorSpec("report", (), DType.BYTES, 0), tensor(500, 500)], Op.GATHER)
    assert [item.spec.op for item in table.first.slices] == [Op.GATHER] * 2
    assert [item.spec.owner for item in table.first.slices] == [EVERYONE] * 2
    assert [len(slices) for slices in table.first.own_slices] == [1, 1]


def test_tiny_tensors_are_fused_across_a_gathered_one() -> None:
    slices = cut(
        [tensor(3), tensor(100, 64), tensor(3)],
        Cut(0, 4096),
        op=Op.MEAN,
        placement=Placement(range(2)),
        chunkings={1: Chunking(2)},
    )
    assert [[part.tensor for part in item.ranges] for item in slices] == [[1], [1], [0, 2]]


def test_gathered_bytes_do_not_count_for_any_shard() -> None:
    """The others are placed as if they did not exist."""
    specs = [tensor(1024), tensor(100, 64), tensor(1024), tensor(1024)]
    slices = cut(specs, Cut(0, 4096), op=Op.MEAN, placement=Placement(range(3)), chunkings={1: Chunking(5)})
    assert [item.spec.owner for item in slices if item.spec.op is Op.MEAN] == [0, 1, 2]
