"""Switches between plans: prepared in one pass, used in the next, with the same gradients throughout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import nn

from tests.support.fake_group import FakeGroup
from undertow.engine.core.rounds import EVERYONE, Op
from undertow.engine.core.slicing import Slice
from undertow.plan.scheme import Scheme
from undertow.plan.slice_plan import SlicePlan
from undertow.sizing import Sizes
from undertow.sync.plan_switch import PlanSwitch
from undertow.torch.factors.layers import find_layers
from undertow.torch.factors.swapping import Swapped
from undertow.torch.gradient.gradients import Gradients
from undertow.torch.passes.passes import Passes

SMALLEST, START = 1024, 4096
WORDS, MIDDLE, TOP = "0.weight", "1.weight", "2.weight"
FACTORS = {MIDDLE: Scheme.FACTORS, TOP: Scheme.FACTORS}


def make_slice_plan(
    slice_bytes: int, schemes: Mapping[str, Scheme], peer_bytes: Mapping[str, float] | None = None
) -> SlicePlan:
    return SlicePlan(
        slice_bytes=slice_bytes,
        credited_bytes=2 * slice_bytes,
        schemes=schemes,
        peer_bytes=peer_bytes or {},
    )


def sent_specs(group: FakeGroup) -> list[tuple[Op, int]]:
    return [(group.slices[key].spec.op, group.slices[key].spec.owner) for key in group.answered]


class Bench:
    """A model whose passes are synchronised, and a copy whose passes are not."""

    def __init__(self, process_group: object = None, *, without_middle: bool = False) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Embedding(50, 48), nn.Linear(48, 48), nn.Linear(48, 24))
        self.not_a_layer = self.net[1].weight if without_middle else None
        self.plain = nn.Sequential(nn.Embedding(50, 48), nn.Linear(48, 48), nn.Linear(48, 24))
        self.plain.load_state_dict(self.net.state_dict())
        self.group = FakeGroup(sizes=Sizes(smallest=SMALLEST, largest=4 * START))
        self.passes = Passes(lambda absent: None)
        self.switch = PlanSwitch(self.group)
        self.process_group = process_group
        self.gradients = [self.watch(list(self.net.named_parameters()), self.net)]

    def watch(self, named: Sequence[tuple[str, nn.Parameter]], module: nn.Module) -> Gradients:
        layers = {layer.weight: layer for layer in find_layers(module)[0] if layer.weight is not self.not_a_layer}
        gradients = Gradients(self.group, "the parameters", named, process_group=self.process_group)
        self.passes.watch(gradients)
        gradients.adopt_layers(layers)
        return gradients

    def prepare(
        self,
        schemes: Mapping[str, Scheme],
        slice_bytes: int = 2048,
        peer_bytes: Mapping[str, float] | None = None,
    ) -> None:
        self.switch.prepare(make_slice_plan(slice_bytes, schemes, peer_bytes), self.gradients)

    def change(self) -> SlicePlan:
        return self.switch.change()

    def switch_to(self, schemes: Mapping[str, Scheme], **options: int) -> None:
        """Switch as training does: prepare before one backward, change before the next."""
        self.train(before_backward=lambda: self.prepare(schemes, **options))
        self.train(before_backward=self.change)

    def train(self, before_backward: Callable[[], object] = lambda: None, *, synchronise: bool = True) -> None:
        """Run one pass of both, after which their gradients are equal."""
        for parameter in (*self.net.parameters(), *self.plain.parameters()):
            parameter.grad = None
        self.group.answered.clear()
        numbers = torch.tensor([[3, 7, 3], [1, 2, 49]])
        self.plain(numbers).square().mean().backward()
        self.switch.change_layers()
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

    def factored(self) -> list[str]:
        """Return the tensors that are sent as factors, beginning with the next pass."""
        one = self.gradients[0]
        return [one.name(index) for index in range(len(one.parameters)) if one.takes_factors(index, now=False)]

    def slices_of(self, name: str) -> list[Slice]:
        """Return the slices in use."""
        one = self.gradients[0]
        index = [one.name(index) for index in range(len(one.parameters))].index(name)
        return one.table.current.own_slices[index]

    def new_keys(self) -> set[int]:
        """Return the keys that are known but not in use."""
        return set(self.group.slices) - {item.spec.key for item in self.gradients[0].table.current.slices}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nothing_is_prepared_at_the_start(bench: Bench) -> None:
    assert not bench.switch.is_prepared
    bench.train()
    assert {op for op, _ in sent_specs(bench.group)} == {Op.MEAN}


def test_a_prepared_layout_is_known_but_not_yet_used(bench: Bench) -> None:
    known = set(bench.group.slices)
    bench.train(before_backward=lambda: bench.prepare(FACTORS))
    assert bench.switch.is_prepared
    assert set(bench.group.slices) > known
    # This pass and the layers of its forward still used the old layout.
    assert set(bench.group.answered) == known
    assert bench.factored() == []
    assert bench.group.resized == []
    assert bench.gradients[0].table.current is bench.gradients[0].table.first


def test_layers_hand_over_factors_from_the_next_forward(bench: Bench) -> None:
    bench.prepare(FACTORS)
    assert bench.swapped == []  # a checkpoint may recompute a forward in this backward
    bench.switch.change_layers()
    assert bench.swapped == ["1", "2"]
    assert bench.net[1](torch.ones(1, 48)).shape == (1, 48)


def test_after_the_change_factors_are_sent_instead_of_gradients(bench: Bench) -> None:
    bench.switch_to(FACTORS)
    assert not bench.switch.is_prepared
    assert bench.factored() == [MIDDLE, TOP]
    assert bench.group.resized == [4096]
    specs = sent_specs(bench.group)
    assert specs.count((Op.GATHER, EVERYONE)) == 2
    # Biases, and the embedding in slices of 2048 bytes.
    assert len([op for op, _ in specs if op is Op.MEAN]) == 1 + -(-50 * 48 * 4 // 2048)
    assert len(bench.group.released) == 2
    assert bench.gradients[0].find_wholes() == []


def test_the_change_returns_the_slice_plan_in_force(bench: Bench) -> None:
    bench.prepare(FACTORS, 3072, {TOP: 5.0})
    assert bench.change() == make_slice_plan(3072, FACTORS, {TOP: 5.0})


def test_rows_are_sent_where_a_plan_says_so(bench: Bench) -> None:
    bench.switch_to({WORDS: Scheme.ROWS})
    assert bench.factored() == [WORDS]
    assert bench.swapped == ["0"]


def test_a_scheme_for_a_tensor_without_a_layer_is_not_followed() -> None:
    bench = Bench(without_middle=True)
    bench.switch_to({**FACTORS, "1.bias": Scheme.FACTORS, "of another model": Scheme.ROWS})
    assert bench.factored() == [TOP]


def test_a_layer_is_restored_when_its_dense_scheme_takes_effect(bench: Bench) -> None:
    bench.switch_to(FACTORS)
    bench.train(before_backward=lambda: bench.prepare({TOP: Scheme.FACTORS}))
    assert bench.swapped == ["1", "2"]  # the forward of the last factored pass may have begun
    assert bench.factored() == [MIDDLE, TOP]
    bench.train(before_backward=bench.change)
    assert bench.factored() == [TOP]
    bench.train()
    assert bench.swapped == ["2"]
    bench.switch_to({})
    bench.train()
    assert bench.swapped == []
    assert type(bench.net[1]) is type(bench.net[2]) is nn.Linear
    bench.train()


def test_kept_factors_survive_a_change_of_other_tensors(bench: Bench) -> None:
    bench.switch_to(FACTORS)
    bench.train(synchronise=False)
    collector = bench.net[2]._undertow_collector
    assert collector._kept
    bench.prepare({**FACTORS, WORDS: Scheme.ROWS}, slice_bytes=1024)
    bench.switch.change_layers()
    bench.change()
    assert bench.net[2]._undertow_collector is collector
    assert collector._kept


def test_factors_are_forgotten_when_the_layer_becomes_dense(bench: Bench) -> None:
    bench.switch_to(FACTORS)
    bench.train(synchronise=False)
    collector = bench.net[2]._undertow_collector
    bench.prepare({})
    bench.change()
    bench.switch.change_layers()
    assert not collector._kept


def test_gradients_stay_the_same_through_any_number_of_changes(bench: Bench) -> None:
    for schemes in (FACTORS, {}, {WORDS: Scheme.ROWS, TOP: Scheme.FACTORS}, {MIDDLE: Scheme.FACTORS}, FACTORS):
        for slice_bytes in (1024, 4096):
            bench.switch_to(schemes, slice_bytes=slice_bytes)
            bench.train()
    assert bench.group.resized == [2048, 8192] * 5


def test_keys_in_use_are_not_cut_anew(bench: Bench) -> None:
    for schemes in (FACTORS, {}, FACTORS, {WORDS: Scheme.ROWS}):
        bench.train()
        in_use = set(bench.group.answered)
        before = {key: bench.group.slices[key] for key in in_use}
        bench.train(before_backward=lambda schemes=schemes: bench.prepare(schemes))  # type: ignore[misc]
        assert {key: bench.group.slices[key] for key in in_use} == before
        bench.train(before_backward=bench.change)
        assert not in_use & set(bench.group.answered)


@pytest.mark.parametrize(
    ("peer_bytes", "chunks"),
    [(0.0, 1), (1.0, 1), (2048.0, 1), (2049.0, 2), (10_000.0, 5), (1e6, 48 * 48 * 4 // 1024 + 1)],
)
def test_factors_are_sent_in_chunks_of_about_a_slice_if_there_are_enough_keys(
    bench: Bench, peer_bytes: float, chunks: int
) -> None:
    bench.prepare(FACTORS, 2048, {MIDDLE: peer_bytes})
    bench.change()
    assert len(bench.slices_of(MIDDLE)) == chunks
    assert len(bench.slices_of(TOP)) == 1
    bench.train()


@pytest.mark.parametrize(("peer_bytes", "chunks"), [(0.0, 1), (4096.0, 2), (1e6, (48 * 48 * 4 // 1024 + 1) // 2)])
def test_each_shard_that_computes_a_gradient_gets_chunks(bench: Bench, peer_bytes: float, chunks: int) -> None:
    """All remaining chunks are activations and one is deltas; the rows come back in slices."""
    bench.prepare({MIDDLE: Scheme.FACTORS_TO_SHARD}, 2048, {MIDDLE: peer_bytes})
    bench.switch.change_layers()
    bench.change()
    assert bench.swapped == ["1"]
    assert bench.factored() == [MIDDLE]
    specs = [item.spec for item in bench.slices_of(MIDDLE)]
    for shard in range(bench.group.size):
        own = [spec for spec in specs if spec.owner == shard]
        assert len([spec for spec in own if spec.op is Op.GATHER]) == chunks + 1
        assert sum(spec.elements for spec in own if spec.op is Op.MEAN) == 48 * 48 // 2


def test_tensors_that_torchs_process_group_sums_have_no_slices() -> None:
    bench = Bench(process_group="of torch")
    bench.prepare({MIDDLE: Scheme.ALLREDUCE, TOP: Scheme.FACTORS})
    bench.switch.change_layers()
    assert bench.swapped == ["2"]
    learned = [item for item in bench.group.slices.values() if item.spec.key >= min(bench.new_keys())]
    names = [bench.gradients[0].name(part.tensor) for item in learned for part in item.ranges]
    assert MIDDLE not in names
    assert {TOP, WORDS} <= set(names)


def test_without_a_process_group_its_tensors_are_sent_dense(bench: Bench) -> None:
    bench.switch_to({MIDDLE: Scheme.ALLREDUCE, TOP: Scheme.FACTORS})
    assert bench.factored() == [TOP]
    assert sum(item.spec.elements for item in bench.slices_of(MIDDLE)) == 48 * 48


def test_all_tables_change_together(bench: Bench) -> None:
    extra = nn.Linear(24, 24)
    bench.gradients.append(bench.watch([("extra.weight", extra.weight)], nn.Sequential(extra)))
    bench.prepare({**FACTORS, "extra.weight": Scheme.FACTORS})
    bench.change()
    assert [one.takes_factors(0, now=False) for one in bench.gradients] == [False, True]
    assert bench.factored() == [MIDDLE, TOP]


def test_parameters_added_in_between_keep_their_first_slices(bench: Bench) -> None:
    bench.prepare(FACTORS)
    extra = nn.Linear(24, 24)
    bench.gradients.append(bench.watch([("extra.weight", extra.weight)], nn.Sequential(extra)))
    bench.change()
    assert bench.gradients[1].table.current is bench.gradients[1].table.first
    assert bench.factored() == [MIDDLE, TOP]


def test_a_gradient_accumulated_before_the_change_is_not_lost(bench: Bench) -> None:
    """A gradient that exists when factors are first wanted is sent along whole."""
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
