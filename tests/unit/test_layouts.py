"""Layouts of a table: whatever is cut anew covers everything, with keys that nothing else uses meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest

from undertow.coordinator.agreement import Agreements
from undertow.coordinator.messages import Arrive
from undertow.coordinator.messages import Table as Registered
from undertow.core.dtypes import DType
from undertow.core.flow import Contribution
from undertow.core.frames import Kind
from undertow.core.rounds import EVERYONE, KeySpec, Op
from undertow.plan.placement import Placement
from undertow.plan.sizing import Sizes
from undertow.plan.slicing import Cut, Part, Slice, TensorSpec, Way, count_most, cut
from undertow.runtime.exchange import Exchange
from undertow.runtime.shape import Shape
from undertow.store.gathering import Gathering, Piece
from undertow.store.shard import Unexpected
from undertow.torch.table import Layout, Table
from undertow.wire.memory import MemoryNetwork

SIZES = Sizes(smallest=1024, largest=16384)
SHARDS = 3


def tensor(*shape: int, dtype: DType = DType.FLOAT32) -> TensorSpec:
    return TensorSpec(f"t {shape}", shape, dtype, int(np.prod(shape)))


SPECS = [tensor(100, 64), tensor(100), tensor(8, 3), tensor(3), tensor(0, 4), tensor(257, 33, dtype=DType.FLOAT64)]


class Coordinated:
    """A group that numbers its keys as the coordinator does, and remembers what it has learned."""

    rank, size = 0, SHARDS

    def __init__(self, sizes: Sizes = SIZES) -> None:
        self.sizes = sizes
        self.learned: list[Sequence[Slice]] = []
        self._agreements = Agreements(1, sizes=sizes)
        self._count = 0

    def discard(self, keys: range) -> None:
        pass

    def register(
        self, label: str, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0
    ) -> list[Slice]:
        payload = msgspec.msgpack.encode(Registered(label, list(tensors), op, keep, keys))
        [(_, verdict)] = self._agreements.arrive(0, Arrive(self._count, "tensors", payload))
        self._count += 1
        how = msgspec.msgpack.decode(verdict.payload, type=Cut)
        return cut(tensors, how, op=op, keep=keep, placement=Placement(self.size))

    def note_names(self, label: str, tensors: Sequence[TensorSpec], slices: Sequence[Slice]) -> None: ...

    def learn(self, slices: Sequence[Slice]) -> None:
        self.learned.append(slices)


def make_table(group: Coordinated, specs: Sequence[TensorSpec] = SPECS, op: Op = Op.MEAN) -> Table:
    return Table(group, "some tensors", specs, op)  # type: ignore[arg-type]


def keys_of(layout: Layout) -> set[int]:
    return {item.spec.key for item in layout.slices}


def check_covers(layout: Layout, specs: Sequence[TensorSpec], ways: Mapping[int, Way] | None = None) -> None:
    """Each element once; what travels in parts to everybody only in chunks without elements."""
    marks = [np.zeros(spec.elements, int) for spec in specs]
    chunks: list[list[int]] = [[] for _ in specs]
    for item in layout.slices:
        if item.spec.op is Op.GATHER:
            assert (item.spec.elements, item.spec.dtype) == (0, DType.BYTES)
            assert not item.is_fused
            chunks[item.parts[0].tensor].append(item.parts[0].offset)
            continue
        assert item.spec.elements == sum(part.elements for part in item.parts) > 0
        for part in item.parts:
            marks[part.tensor][part.offset :][: part.elements] += 1
    for index in range(len(specs)):
        way = (ways or {}).get(index)
        is_for_all = way is not None and not way.to_shards
        assert (marks[index] == (0 if is_for_all else 1)).all()
        if way is None:
            assert not chunks[index]
        elif is_for_all:
            assert chunks[index] == list(range(way.chunks))


def most(index: int, *, to_shards: bool = False) -> Way:
    """As many chunks as are ever asked for."""
    chunks = count_most(SPECS[index], SIZES.smallest)
    return Way(max(1, chunks // SHARDS), to_shards) if to_shards else Way(chunks)


CUTS: list[Mapping[int, Way]] = [
    {},
    {0: Way(1)},
    {0: Way(3), 2: Way(1)},
    {0: most(0), 2: most(2), 5: most(5)},
    {0: most(0, to_shards=True), 2: most(2, to_shards=True), 5: most(5, to_shards=True)},
    {0: Way(2, to_shards=True), 5: Way(4)},
]


# Tables


@pytest.mark.parametrize("ways", CUTS)
@pytest.mark.parametrize("slice_bytes", [1024, 1040, 4096, 16384])
def test_a_new_cut_covers_everything(ways: Mapping[int, Way], slice_bytes: int) -> None:
    table = make_table(Coordinated())
    check_covers(table.first, SPECS)
    check_covers(table.recut(slice_bytes, ways), SPECS, ways)


@pytest.mark.parametrize("ways", CUTS)
def test_the_keys_of_two_cuts_and_of_the_first_never_meet(ways: Mapping[int, Way]) -> None:
    """Nor those of a table that was registered before or after."""
    group = Coordinated()
    before = make_table(group)
    table = make_table(group)
    after = make_table(group)
    taken = keys_of(table.first)
    for other in (before, after):
        others = keys_of(other.first) | keys_of(other.recut(1024, ways)) | keys_of(other.recut(1024, ways))
        assert not taken & others
        taken |= others
    earlier: set[int] = set()
    for round_number in range(5):
        keys = keys_of(table.recut(1024, CUTS[round_number] if round_number % 2 else ways))
        table.change()
        assert not keys & taken
        assert not keys & earlier
        earlier = keys


@pytest.mark.parametrize("ways", CUTS)
def test_keys_do_not_meet_where_the_user_gave_the_slice_size(ways: Mapping[int, Way]) -> None:
    """Which may be smaller than the smallest that would be chosen."""
    group = Coordinated(Sizes(fixed=1024, smallest=64 << 10))
    table, after = make_table(group), make_table(group)
    first, second = keys_of(table.recut(1024, ways)), keys_of(table.recut(1024, ways))
    assert not keys_of(table.first) & first
    assert not keys_of(table.first) & second
    assert not first & second
    assert not (first | second) & keys_of(after.first)


def test_keys_are_used_again_only_by_the_next_cut_but_one() -> None:
    table = make_table(Coordinated())
    first, second, third = (keys_of(table.recut(1024)) for _ in range(3))
    assert not first & second
    assert first == third


def test_a_cut_is_made_known_at_once_and_used_when_it_is_changed_to() -> None:
    group = Coordinated()
    table = make_table(group)
    made = table.recut(2048)
    assert group.learned == [made.slices]
    assert table.current is table.first
    table.change()
    assert table.current is made
    check_covers(table.first, SPECS)


def test_all_ranks_cut_alike() -> None:
    for ways in CUTS:
        ours, theirs = (make_table(Coordinated()) for _ in range(2))
        assert ours.recut(2048, ways).slices == theirs.recut(2048, ways).slices


def test_places_tell_where_a_tensor_travels() -> None:
    table = make_table(Coordinated())
    layout = table.recut(4096, {0: Way(2)})
    assert [item.parts for item in layout.places[0].slices] == [(Part(0, 0, 0, 0),), (Part(0, 1, 0, 0),)]
    for index in (1, 2, 3):
        fused = layout.places[index].fused
        assert fused is not None
        assert fused.parts[layout.places[index].bit].tensor == index
        assert not layout.places[index].slices
    assert layout.places[4].fused is None
    assert not layout.places[4].slices
    assert sum(item.spec.elements for item in layout.places[5].slices) == SPECS[5].elements


def test_what_everybody_gets_has_no_shard() -> None:
    layout = make_table(Coordinated()).recut(4096, {0: Way(3), 5: Way(2, to_shards=True)})
    for_all = [item.spec for item in layout.places[0].slices]
    assert {(spec.shard, spec.op, spec.elements) for spec in for_all} == {(EVERYONE, Op.GATHER, 0)}
    to_shards = [item.spec for item in layout.places[5].slices]
    assert {spec.shard for spec in to_shards if spec.op is Op.GATHER} == set(range(SHARDS))
    assert {spec.shard for spec in to_shards if spec.op is Op.MEAN} == set(range(SHARDS))


def test_a_table_that_is_gathered_has_one_key_per_tensor_whatever_its_size() -> None:
    """As that of the reports: nobody knows before how long they are."""
    table = make_table(Coordinated(), [TensorSpec("report", (), DType.BYTES, 0), tensor(500, 500)], Op.GATHER)
    assert [item.spec.op for item in table.first.slices] == [Op.GATHER] * 2
    assert [item.spec.shard for item in table.first.slices] == [EVERYONE] * 2
    assert [len(place.slices) for place in table.first.places] == [1, 1]


def test_tiny_tensors_are_fused_across_one_that_is_gathered() -> None:
    slices = cut(
        [tensor(3), tensor(100, 64), tensor(3)],
        Cut(0, 4096),
        op=Op.MEAN,
        placement=Placement(2),
        ways={1: Way(2)},
    )
    assert [[part.tensor for part in item.parts] for item in slices] == [[1], [1], [0, 2]]


def test_bytes_that_are_gathered_burden_no_shard() -> None:
    """The others are placed as if it were not there."""
    specs = [tensor(1024), tensor(100, 64), tensor(1024), tensor(1024)]
    slices = cut(specs, Cut(0, 4096), op=Op.MEAN, placement=Placement(3), ways={1: Way(5)})
    assert [item.spec.shard for item in slices if item.spec.op is Op.MEAN] == [0, 1, 2]


# A key that was gathered is summed, and the other way round


KEY = 7
GATHERED = Slice(KeySpec(KEY, 0, DType.BYTES, Op.GATHER, EVERYONE), (Part(0, 0, 0, 0),))
SUMMED = Slice(KeySpec(KEY, 4, DType.FLOAT32, Op.SUM, 1), (Part(0, 0, 4, 0),))


def test_a_key_that_is_disowned_is_not_known_and_begins_anew_when_owned_again() -> None:
    gathering = Gathering(2)
    gathering.own([GATHERED.spec])
    for step in (1, 2, 3):
        gathering.contribute(0, KEY, step, Piece(None, 0))
        gathering.contribute(1, KEY, step, Piece(None, 0))
    gathering.disown([KEY, KEY + 1])
    assert not gathering.knows(KEY)
    assert gathering.missing(KEY, 4) == []
    assert gathering.blocked_by([0, 1]) is None
    gathering.own([GATHERED.spec])
    with pytest.raises(Unexpected):
        gathering.expects(1, KEY, 4)
    gathering.contribute(0, KEY, 1, Piece(None, 5))
    assert gathering.contribute(1, KEY, 1, Piece(None, 6)) == [Piece(None, 5), Piece(None, 6)]


class Pair:
    """Two workers, without threads."""

    def __init__(self) -> None:
        self.network = MemoryNetwork(2)
        self.exchanges = [
            Exchange(
                Shape(
                    rank=rank,
                    hosts=["host"] * 2,
                    job=1,
                    sizes=SIZES,
                    credit_bytes=1 << 16,
                    silence_timeout_s=10.0,
                    stall_timeout_s=10.0,
                ),
                self.network.transports[rank],
            )
            for rank in range(2)
        ]
        self.network.connect([_Receiver(exchange) for exchange in self.exchanges])

    def learn(self, item: Slice) -> None:
        for exchange in self.exchanges:
            exchange.learn([item])

    def run(self, values: Sequence[float], *, is_gathered: bool) -> list[Contribution]:
        """One round of the key.  What was answered, rank by rank."""
        answered: list[Contribution] = []
        given = []
        for rank, value in enumerate(values):
            source = np.full(4 + rank if is_gathered else 4, value, np.float32)
            target = None if is_gathered else np.zeros(4, np.float32)
            sent = source.view(np.uint8) if is_gathered else source
            given.append(Contribution(KEY, sent, target, 1, answered.append))
            self.exchanges[rank].contribute([given[-1]])
        while links := self.network.links_with_frames():
            self.network.deliver(*links[0])
        assert len(answered) == 2
        return given


class _Receiver:
    def __init__(self, exchange: Exchange) -> None:
        self.sink = exchange.sink
        self.arrived = exchange.handle

    def connected(self, peer: int) -> None: ...

    def lost(self, peer: int, reason: str) -> None: ...


def test_a_key_may_be_gathered_then_summed_then_gathered_again() -> None:
    pair = Pair()
    for turn in range(3):
        pair.learn(GATHERED)
        for value in (1.0, 2.0 + turn):
            for one in pair.run([value, 10 * value], is_gathered=True):
                pieces = [piece.array.view(np.float32).tolist() for piece in one.pieces]
                assert pieces == [[value] * 4, [10 * value] * 5]
        pair.learn(SUMMED)
        for value in (3.0, 4.0 + turn):
            for one in pair.run([value, 10 * value], is_gathered=False):
                assert one.target is not None
                assert one.target.tolist() == [11 * value] * 4


def test_a_key_that_is_gathered_is_pushed_to_everybody_and_needs_no_answer() -> None:
    pair = Pair()
    pair.learn(GATHERED)
    given = [Contribution(KEY, np.zeros(3, np.uint8), None, 1, lambda one: None) for _ in range(2)]
    for exchange, contribution in zip(pair.exchanges, given, strict=True):
        exchange.contribute([contribution])
    kinds = []
    while links := pair.network.links_with_frames():
        header = pair.network.deliver(*links[0])
        assert header is not None
        kinds.append(header.kind)
    assert [kind for kind in kinds if kind is not Kind.RECEIVED] == [Kind.PUSH] * 2
