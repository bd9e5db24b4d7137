"""From one plan to the next: prepared in one pass, used in the next one, and every gradient stays what it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from undertow.core.flow import Contribution
from undertow.core.rounds import EVERYONE, Op
from undertow.plan.placement import Placement
from undertow.plan.scheme import Scheme
from undertow.plan.sizing import Sizes
from undertow.plan.slicing import Cut, Slice, TensorSpec, cut
from undertow.runtime.waiting import Ticket
from undertow.store.gathering import Piece
from undertow.torch.gradients import Gradients
from undertow.torch.layers import Layer, find_layers
from undertow.torch.passes import Passes
from undertow.torch.swapping import Swapped
from undertow.torch.switching import Switch, Ways

SMALLEST, START = 1024, 4096
WORDS, MIDDLE, TOP = "0.weight", "1.weight", "2.weight"
FACTORS = {MIDDLE: Scheme.FACTORS, TOP: Scheme.FACTORS}


class Mirror:
    """A group of two, the other of which always contributes the same: the mean is what one worker has."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.sizes = Sizes(smallest=SMALLEST, largest=4 * START)
        self.waiters = self
        self.resized: list[int] = []
        self.known: dict[int, Slice] = {}
        self.sent: list[int] = []  # the keys of a pass
        self.released = 0
        self._next_key = 0

    def discard(self, keys: range) -> None:
        pass

    def register(
        self, label: str, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0
    ) -> list[Slice]:
        slices = cut(tensors, Cut(self._next_key, START), op=op, keep=keep, placement=Placement(self.size))
        self._next_key += max(keys, len(slices))
        self.learn(slices)
        return slices

    def note_names(self, label: str, tensors: Sequence[TensorSpec], slices: Sequence[Slice]) -> None: ...

    def learn(self, slices: Sequence[Slice]) -> None:
        self.known |= {item.spec.key: item for item in slices}

    def resize(self, slice_bytes: int) -> None:
        self.resized.append(slice_bytes)

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        for one in contributions:
            self.sent.append(one.key)
            spec = self.known[one.key].spec
            if spec.op is Op.GATHER:
                one.pieces = [Piece(one.source, one.present)] * self.size
            elif one.source is not None:
                assert one.target is not None
                assert one.source.size == spec.elements
                one.target[:] = one.source
            one.on_result(one)

    def start_helper(self) -> None: ...

    def release(self, pieces: Sequence[Piece]) -> None:
        self.released += len(pieces)

    def wait_for(self, ticket: Ticket, reason: str = "", *, tensor: str = "") -> None:
        assert ticket.is_done

    def sent_specs(self) -> list[tuple[Op, int]]:
        return [(self.known[key].spec.op, self.known[key].spec.shard) for key in self.sent]


class Bench:
    """A model whose passes are synchronised, beside one whose are not."""

    def __init__(self, process_group: object = None) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Embedding(50, 48), nn.Linear(48, 48), nn.Linear(48, 24))
        self.plain = nn.Sequential(nn.Embedding(50, 48), nn.Linear(48, 48), nn.Linear(48, 24))
        self.plain.load_state_dict(self.net.state_dict())
        self.group = Mirror()
        self.passes = Passes(lambda absent: None)
        self.layers: dict[torch.Tensor, Layer] = {layer.weight: layer for layer in find_layers(self.net)[0]}
        self.switch = Switch(self.group)  # type: ignore[arg-type]
        self.process_group = process_group
        self.gradients = [self.watch(list(self.net.named_parameters()))]

    def watch(self, named: Sequence[tuple[str, nn.Parameter]]) -> Gradients:
        group: Any = self.group
        gradients = Gradients(group, "the parameters", named, process_group=self.process_group)
        self.passes.watch(gradients)
        return gradients

    def prepare(
        self,
        schemes: Mapping[str, Scheme],
        slice_bytes: int = 2048,
        piece_bytes: Mapping[str, float] | None = None,
    ) -> None:
        self.switch.prepare(Ways(slice_bytes, 2 * slice_bytes, schemes, piece_bytes or {}), self.gradients, self.layers)

    def change(self) -> Ways:
        return self.switch.change(self.layers)

    def switch_to(self, schemes: Mapping[str, Scheme], **options: int) -> None:
        """As training does it: prepare before one backward, change before the next."""
        self.train(before_backward=lambda: self.prepare(schemes, **options))
        self.train(before_backward=self.change)

    def train(self, before_backward: Callable[[], object] = lambda: None, *, synchronise: bool = True) -> None:
        """One pass of both, after which their gradients are equal."""
        for parameter in (*self.net.parameters(), *self.plain.parameters()):
            parameter.grad = None
        self.group.sent = []
        numbers = torch.tensor([[3, 7, 3], [1, 2, 49]])
        self.plain(numbers).square().mean().backward()
        self.switch.swap_layers()
        output = self.net(numbers)
        self.passes.expect(output, synchronise=synchronise)
        before_backward()
        output.square().mean().backward()
        for ours, theirs in zip(self.net.parameters(), self.plain.parameters(), strict=True):
            assert ours.grad is not None
            torch.testing.assert_close(ours.grad, theirs.grad)

    @property
    def swapped(self) -> list[str]:
        return [name for name, part in self.net.named_modules() if isinstance(part, Swapped)]

    def gathered(self) -> list[str]:
        """What is gathered from the next pass on."""
        one = self.gradients[0]
        return [one.name(index) for index in range(len(one.parameters)) if one.gathers(index, now=False)]

    def slices_of(self, name: str) -> list[Slice]:
        """Those that are in use."""
        one = self.gradients[0]
        index = [one.name(index) for index in range(len(one.parameters))].index(name)
        return one.table.current.places[index].slices

    def new_keys(self) -> set[int]:
        """Those that are known but not in use."""
        return set(self.group.known) - {item.spec.key for item in self.gradients[0].table.current.slices}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nothing_is_prepared_at_the_start(bench: Bench) -> None:
    assert not bench.switch.is_prepared
    bench.train()
    assert {op for op, _ in bench.group.sent_specs()} == {Op.MEAN}


def test_what_is_prepared_is_known_but_not_yet_used(bench: Bench) -> None:
    known = set(bench.group.known)
    bench.train(before_backward=lambda: bench.prepare(FACTORS))
    assert bench.switch.is_prepared
    assert set(bench.group.known) > known
    # This pass still went as before, the layers of its forward as well.
    assert set(bench.group.sent) == known
    assert bench.gathered() == []
    assert bench.group.resized == []
    assert bench.gradients[0].table.current is bench.gradients[0].table.first


def test_layers_hand_over_their_parts_from_the_next_forward_on(bench: Bench) -> None:
    bench.prepare(FACTORS)
    assert bench.swapped == []  # a checkpoint may compute a forward again in this backward
    bench.switch.swap_layers()
    assert bench.swapped == ["1", "2"]
    assert bench.net[1](torch.ones(1, 48)).shape == (1, 48)


def test_after_the_change_parts_travel_instead_of_gradients(bench: Bench) -> None:
    bench.switch_to(FACTORS)
    assert not bench.switch.is_prepared
    assert bench.gathered() == [MIDDLE, TOP]
    assert bench.group.resized == [4096]
    specs = bench.group.sent_specs()
    assert specs.count((Op.GATHER, EVERYONE)) == 2
    # Biases, and the embedding in slices of 2048 bytes.
    assert len([op for op, _ in specs if op is Op.MEAN]) == 1 + -(-50 * 48 * 4 // 2048)
    assert bench.group.released == 2
    assert bench.gradients[0].find_wholes() == []


def test_the_change_tells_what_is_used_now(bench: Bench) -> None:
    bench.prepare(FACTORS, 3072, {TOP: 5.0})
    assert bench.change() == Ways(3072, 6144, FACTORS, {TOP: 5.0})


def test_rows_travel_where_a_plan_says_so(bench: Bench) -> None:
    bench.switch_to({WORDS: Scheme.ROWS})
    assert bench.gathered() == [WORDS]
    assert bench.swapped == ["0"]


def test_a_scheme_for_a_tensor_without_a_layer_is_not_followed(bench: Bench) -> None:
    del bench.layers[bench.net[1].weight]
    bench.switch_to({**FACTORS, "1.bias": Scheme.FACTORS, "of another model": Scheme.ROWS})
    assert bench.gathered() == [TOP]


def test_a_layer_that_is_dense_again_is_restored_when_that_is_used(bench: Bench) -> None:
    bench.switch_to(FACTORS)
    bench.train(before_backward=lambda: bench.prepare({TOP: Scheme.FACTORS}))
    assert bench.swapped == ["1", "2"]  # the forward of the pass that ends it all may have begun
    assert bench.gathered() == [MIDDLE, TOP]
    bench.train(before_backward=bench.change)
    assert bench.gathered() == [TOP]
    bench.train()
    assert bench.swapped == ["2"]
    bench.switch_to({})
    bench.train()
    assert bench.swapped == []
    assert type(bench.net[1]) is type(bench.net[2]) is nn.Linear
    bench.train()


def test_what_stays_gathered_keeps_its_source(bench: Bench) -> None:
    """Parts of passes that only accumulated wait in it."""
    bench.switch_to(FACTORS)
    before = dict(bench.gradients[0].sources)
    bench.switch_to({**FACTORS, WORDS: Scheme.ROWS}, slice_bytes=1024)
    after = bench.gradients[0].sources
    assert len(after) == 3
    assert all(after[index] is source for index, source in before.items())


def test_every_gradient_is_the_same_through_any_number_of_changes(bench: Bench) -> None:
    for schemes in (FACTORS, {}, {WORDS: Scheme.ROWS, TOP: Scheme.FACTORS}, {MIDDLE: Scheme.FACTORS}, FACTORS):
        for slice_bytes in (1024, 4096):
            bench.switch_to(schemes, slice_bytes=slice_bytes)
            bench.train()
    assert bench.group.resized == [2048, 8192] * 5


def test_keys_in_use_are_not_cut_anew(bench: Bench) -> None:
    for schemes in (FACTORS, {}, FACTORS, {WORDS: Scheme.ROWS}):
        bench.train()
        in_use = set(bench.group.sent)
        before = {key: bench.group.known[key] for key in in_use}
        bench.train(before_backward=lambda schemes=schemes: bench.prepare(schemes))  # type: ignore[misc]
        assert {key: bench.group.known[key] for key in in_use} == before
        bench.train(before_backward=bench.change)
        assert not in_use & set(bench.group.sent)


@pytest.mark.parametrize(
    ("piece_bytes", "chunks"),
    [(0.0, 1), (1.0, 1), (2048.0, 1), (2049.0, 2), (10_000.0, 5), (1e6, 48 * 48 * 4 // 1024 + 1)],
)
def test_pieces_are_sent_in_chunks_of_about_a_slice_as_far_as_there_are_keys(
    bench: Bench, piece_bytes: float, chunks: int
) -> None:
    bench.prepare(FACTORS, 2048, {MIDDLE: piece_bytes})
    bench.change()
    assert len(bench.slices_of(MIDDLE)) == chunks
    assert len(bench.slices_of(TOP)) == 1
    bench.train()


@pytest.mark.parametrize(("piece_bytes", "chunks"), [(0.0, 1), (4096.0, 2), (1e6, (48 * 48 * 4 // 1024 + 1) // 2)])
def test_shards_that_make_a_gradient_get_chunks_each(bench: Bench, piece_bytes: float, chunks: int) -> None:
    """As many of the activations as there are, one of the deltas; and their rows come back in slices."""
    bench.prepare({MIDDLE: Scheme.FACTORS_TO_SHARD}, 2048, {MIDDLE: piece_bytes})
    bench.switch.swap_layers()
    bench.change()
    assert bench.swapped == ["1"]
    assert bench.gathered() == [MIDDLE]
    specs = [item.spec for item in bench.slices_of(MIDDLE)]
    for shard in range(Mirror.size):
        own = [spec for spec in specs if spec.shard == shard]
        assert len([spec for spec in own if spec.op is Op.GATHER]) == chunks + 1
        assert sum(spec.elements for spec in own if spec.op is Op.MEAN) == 48 * 48 // 2


def test_what_torchs_process_group_sums_has_no_slices() -> None:
    bench = Bench(process_group="of torch")
    bench.prepare({MIDDLE: Scheme.ALLREDUCE, TOP: Scheme.FACTORS})
    bench.switch.swap_layers()
    assert bench.swapped == ["2"]
    learned = [item for item in bench.group.known.values() if item.spec.key >= min(bench.new_keys())]
    names = [bench.gradients[0].name(part.tensor) for item in learned for part in item.parts]
    assert MIDDLE not in names
    assert {TOP, WORDS} <= set(names)


def test_without_a_process_group_its_tensors_travel_as_a_whole(bench: Bench) -> None:
    bench.switch_to({MIDDLE: Scheme.ALLREDUCE, TOP: Scheme.FACTORS})
    assert bench.gathered() == [TOP]
    assert sum(item.spec.elements for item in bench.slices_of(MIDDLE)) == 48 * 48


def test_all_tables_change_together(bench: Bench) -> None:
    extra = nn.Linear(24, 24)
    bench.gradients.append(bench.watch([("extra.weight", extra.weight)]))
    bench.layers[extra.weight] = find_layers(nn.Sequential(extra))[0][0]
    bench.prepare({**FACTORS, "extra.weight": Scheme.FACTORS})
    bench.change()
    assert [one.gathers(0, now=False) for one in bench.gradients] == [False, True]
    assert bench.gathered() == [MIDDLE, TOP]


def test_parameters_that_come_between_the_two_keep_their_first_slices(bench: Bench) -> None:
    bench.prepare(FACTORS)
    extra = nn.Linear(24, 24)
    bench.gradients.append(bench.watch([("extra.weight", extra.weight)]))
    bench.layers[extra.weight] = find_layers(nn.Sequential(extra))[0][0]
    bench.change()
    assert bench.gradients[1].table.current is bench.gradients[1].table.first
    assert bench.gathered() == [MIDDLE, TOP]


def test_what_was_accumulated_before_the_change_is_not_lost(bench: Bench) -> None:
    """A gradient that is there already when the first parts are asked for goes along as a whole."""
    bench.train(before_backward=lambda: bench.prepare(FACTORS))
    bench.train(synchronise=False)
    for parameter in bench.plain.parameters():
        assert parameter.grad is not None
        parameter.grad *= 2
    output = bench.net(torch.tensor([[3, 7, 3], [1, 2, 49]]))
    bench.passes.expect(output, synchronise=True)
    bench.change()
    output.square().mean().backward()
    for ours, theirs in zip(bench.net.parameters(), bench.plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
