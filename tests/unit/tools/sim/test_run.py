"""Simulated steps: small models by hand, and what must hold of any model under any schedule."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.bench_fakes import FakeProgress
from undertow.engine.core.frames import Header
from undertow.engine.core.frames import Kind as Frame
from undertow.engine.core.shape import Shape
from undertow.errors import ConfigError
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile
from undertow.plan.scheme import Scheme
from undertow.sizing import Sizes
from undertow.tools.sim.engine import Costs, Engine
from undertow.tools.sim.run import Outcome, find_cluster, simulate
from undertow.tools.sim.schedules import Schedule, find_schedule, list_schedules
from undertow.tools.sim.subject import Device, Subject, find_subject
from undertow.tools.sim.sweep import Noise, Setting, list_runs, make_points, run, weigh
from undertow.tools.sim.topology import Fabric, Host, Topology, make_topology
from undertow.tools.sim.worker import Layer, Worker
from undertow.tools.virtual.world import Clock

# A megabyte per second, no latency, engines that cost next to nothing: a tensor of a megabyte on two hosts takes a
# second, half of it to the shards and half of it back.
RATE_BITS = 8e6
FREE = Costs(message_s=1e-9, byte_s=0.0)
DEVICE = Device(flops_per_s=1e12, shard_flops_per_s=1e9)
DENSE = ("ps", "wfbp", "p3", "undertow-no-hybrid")
BLOCK = 2 << 20  # the largest slices of any of these


def make_layer(
    name: str, *size_bytes: int, forward_s: float = 1.0, backward_s: float = 2.0, kind: LayerKind = LayerKind.OTHER
) -> LayerProfile:
    tensors = tuple(
        TensorProfile(name=f"{name}.{index}", shape=(size // 4,), kind=kind) for index, size in enumerate(size_bytes)
    )
    return LayerProfile(name=name, tensors=tensors, forward_s=forward_s, backward_s=backward_s)


def make_linear(
    shape: tuple[int, int], rows: float, *, kind: LayerKind = LayerKind.LINEAR, name: str = "fc"
) -> LayerProfile:
    """Its gradient is made in half of a second."""
    tensor = TensorProfile(name=name, shape=shape, kind=kind, rows=rows, product_s=0.5)
    return LayerProfile(name=name, tensors=(tensor,), forward_s=1.0, backward_s=2.0)


def make_profile(*layers: LayerProfile) -> Profile:
    return Profile(layers=layers)


def make_plain(hosts: int, bandwidth_bits_per_s: float = RATE_BITS) -> Topology:
    return make_topology(hosts, bandwidth_bits_per_s, latency_s=0.0, goodput=1.0)


def make_unequal(bandwidths_bits_per_s: Sequence[float]) -> Topology:
    hosts = tuple(Host(bandwidth_bits_per_s=rate) for rate in bandwidths_bits_per_s)
    return Topology(hosts=hosts, latency_s=0.0, goodput=1.0)


def make_fine(system: str) -> Schedule:
    """In slices of eight milliseconds."""
    return replace(find_schedule(system), sizes=Sizes(fixed=8000))


def step(profile: Profile, topology: Topology, schedule: Schedule | str, *, costs: Costs = FREE) -> Outcome:
    schedule = find_schedule(schedule) if isinstance(schedule, str) else schedule
    return simulate(profile, topology, replace(schedule, message_s=None), DEVICE, costs=costs)


# Two tensors in a layer, one that is tiny, one layer without any.
PLAIN = make_profile(
    make_layer("a", 2 * BLOCK, 400, forward_s=0.5),
    make_layer("b", forward_s=0.2, backward_s=0.1),
    make_layer("c", BLOCK, 4000, backward_s=1.0),
)
# And one that can go every way.
MIXED = make_profile(*PLAIN.layers, make_linear((2048, 1024), 16, name="d"))
# Every schedule can give each of up to four shards the same share.
EVEN = make_profile(*(make_layer(name, 4 * BLOCK) for name in "abcd"))


# Nothing to wait for


@pytest.mark.parametrize("system", list_schedules())
def test_one_host_takes_compute_alone(system: str) -> None:
    outcome = step(MIXED, make_plain(1), system)
    assert outcome.steps_s == [pytest.approx(MIXED.compute_s)] * 2
    assert outcome.bytes_out == [0.0]


@pytest.mark.parametrize("system", list_schedules())
def test_on_a_network_that_takes_no_time_every_step_takes_compute_alone(system: str) -> None:
    outcome = step(PLAIN, make_plain(3, 8e17), system)
    # What torch's ring costs beside its bytes stays.
    assert outcome.steps_s == [pytest.approx(PLAIN.compute_s, rel=0.002)] * 2


# Nothing but the network


@pytest.mark.parametrize("system", [*DENSE, "ddp", "slicing", "fifo", "hybrid", "undertow"])
def test_on_a_slow_network_a_step_takes_what_its_bytes_take(system: str) -> None:
    """But for the first gradient, which is there only when its layer has computed it."""
    profile = make_profile(*(make_layer(name, 4 * BLOCK, forward_s=1e-4, backward_s=1e-4) for name in "abcd"))
    outcome = step(profile, make_plain(4, 2e8), system)
    assert outcome.iteration_s == pytest.approx(max(outcome.bytes_out) * 8 / 2e8, rel=0.04)


@pytest.mark.parametrize("hosts", [2, 4])
@pytest.mark.parametrize("system", [*DENSE, "ddp"])
def test_every_host_sends_what_the_formula_of_dense_gradients_says(system: str, hosts: int) -> None:
    outcome = step(EVEN, make_plain(hosts, 1e9), system)
    model_bytes = 16 * BLOCK
    assert outcome.bytes_out == [pytest.approx(2 * (hosts - 1) / hosts * model_bytes, rel=0.02)] * hosts


@pytest.mark.parametrize("system", ["undertow", "hybrid"])
def test_every_host_sends_what_the_plan_says(system: str) -> None:
    profile = make_profile(make_layer("conv", 4 * BLOCK), make_linear((2048, 1024), 16))
    outcome = step(profile, make_plain(4, 1e9), system)
    assert outcome.plan.schemes["fc"] is not Scheme.DENSE
    assert outcome.bytes_out == [pytest.approx(outcome.plan.bytes_out, rel=0.02)] * 4


def test_half_precision_is_half_of_the_bytes() -> None:
    tensor = TensorProfile(name="a", shape=(1_000_000,), itemsize=2)
    profile = make_profile(LayerProfile(name="a", tensors=(tensor,), forward_s=1.0, backward_s=2.0))
    for system in ("ddp", "undertow"):
        assert step(profile, make_plain(2), make_fine(system)).bytes_out[0] == pytest.approx(2_000_000, rel=0.03)


# Two hosts, with a pencil


def find_step_s(schedule: Schedule, *layers: LayerProfile) -> float:
    outcome = step(make_profile(*layers), make_plain(2), schedule)
    assert outcome.steps_s[0] == pytest.approx(outcome.steps_s[1], rel=0.01)
    return outcome.iteration_s


SMALL_THEN_LARGE = (make_layer("a", 1_000_000), make_layer("b", 4_000_000))
NEAR = 0.12  # seconds: slices that are in flight are not interrupted, and headers are bytes too


def test_plain_ps_is_one_after_the_other() -> None:
    # Backward of both, then 5 MB, then forward of both.
    assert find_step_s(make_fine("ps"), *SMALL_THEN_LARGE) == pytest.approx(4 + 5 + 2, abs=NEAR)


def test_wfbp_hides_what_leaves_while_backward_still_computes() -> None:
    # b: 2 to 6, then a (ready at 4): 6 to 7, then forward of both.
    assert find_step_s(make_fine("wfbp"), *SMALL_THEN_LARGE) == pytest.approx(7 + 2, abs=NEAR)


@pytest.mark.parametrize("system", ["p3", "undertow"])
def test_what_is_needed_first_interrupts_what_is_needed_later(system: str) -> None:
    # b: 2 to 4, then a: 4 to 5, then the rest of b: 5 to 7.  a's forward runs from 5 to 6, b's from 7 on.
    assert find_step_s(make_fine(system), *SMALL_THEN_LARGE) == pytest.approx(7 + 1, abs=NEAR)


def test_ddp_shares_the_link_between_two_buckets_and_waits_for_both() -> None:
    # b from 2 on, a from 4 on, each with half of the link: a is done at 6 and b at 7.
    assert find_step_s(find_schedule("ddp"), *SMALL_THEN_LARGE) == pytest.approx(7 + 2, abs=NEAR)


@pytest.mark.parametrize(("system", "expected_s"), [("wfbp", 6 + 2), ("slicing", 6 + 1), ("undertow", 6 + 1)])
def test_a_gate_waits_for_its_own_layer_only(system: str, expected_s: float) -> None:
    # b is ready at 2 and there at 6, when a, which has nothing to wait for, has just ended its forward.
    layers = (make_layer("a"), make_layer("b", 4_000_000))
    assert find_step_s(make_fine(system), *layers) == pytest.approx(expected_s, abs=NEAR)


def test_the_last_gradient_is_needed_first_and_nothing_hides_it() -> None:
    layers = (make_layer("a", 3_000_000), make_layer("b"))
    for system in ("ps", "wfbp", "undertow"):
        assert find_step_s(make_fine(system), *layers) == pytest.approx(6 + 3, abs=NEAR)


def test_latency_is_paid_on_the_way_to_the_shard_and_back() -> None:
    profile = make_profile(make_layer("a", 4000))
    topology = make_topology(2, 8e12, latency_s=0.125, goodput=1.0)
    for system in ("ps", "wfbp", "undertow"):
        assert step(profile, topology, system).iteration_s == pytest.approx(3 + 0.25, rel=0.001)


def test_a_frame_costs_the_engine_that_sends_and_the_one_that_receives() -> None:
    """One slice: the shard's own contribution is free, the other's is sent, received, answered and received."""
    profile = make_profile(make_layer("a", 4000))
    free_s, costly_s = (
        step(profile, make_plain(2, 8e12), "wfbp", costs=costs).iteration_s
        for costs in (FREE, Costs(message_s=0.25, byte_s=1 / 8000))
    )
    # Twice received, 4000 bytes each time; what is sent holds up at most what comes after it.
    assert free_s + 2 * (0.25 + 0.5) - 1e-6 <= costly_s <= free_s + 4 * 0.25 + 2 * 0.5


# Other schemes


def force(scheme: Scheme) -> Schedule:
    return replace(make_fine("undertow"), policy=scheme.value)


def test_factors_spare_the_dense_bytes_and_cost_the_products_of_the_others() -> None:
    layer = make_linear((1000, 1000), 100)
    # K (M + N) floats to the other worker, and its product.
    assert find_step_s(force(Scheme.FACTORS), layer) == pytest.approx(3 + 0.8 + 0.5, abs=NEAR)


def test_factors_to_the_shards_wait_for_their_product_and_for_the_rows() -> None:
    layer = make_linear((1000, 1000), 100)
    # The device is spared its own product.  Half of (100 + 2 x 100) thousand floats goes to the shard, which multiplies
    # 200 million flops at 1 Gflop/s; half of a million floats comes back.
    assert find_step_s(force(Scheme.FACTORS_TO_SHARD), layer) == pytest.approx(3 - 0.5 + 0.6 + 0.2 + 2, abs=NEAR)


def test_rows_send_only_what_was_touched() -> None:
    layer = make_linear((100_000, 100), 1000, kind=LayerKind.EMBEDDING)
    # 100 floats and a number for each of them.
    assert find_step_s(force(Scheme.ROWS), layer) == pytest.approx(3 + 0.408, abs=NEAR)


@pytest.mark.parametrize("hosts", [2, 3, 5])
@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        (Scheme.FACTORS, LayerKind.LINEAR),
        (Scheme.FACTORS_TO_SHARD, LayerKind.LINEAR),
        (Scheme.ROWS, LayerKind.EMBEDDING),
    ],
)
def test_every_scheme_sends_what_its_formula_says(scheme: Scheme, kind: LayerKind, hosts: int) -> None:
    profile = make_profile(make_layer("first", 400), make_linear((2000, 1000), 50, kind=kind), make_layer("last", 400))
    schedule = replace(find_schedule("undertow"), policy=scheme.value)
    outcome = step(profile, make_plain(hosts, 1e9), schedule)
    assert outcome.plan.schemes["fc"] is scheme
    assert statistics.fmean(outcome.bytes_out) == pytest.approx(outcome.plan.bytes_out, rel=0.02)
    assert max(outcome.bytes_out) == pytest.approx(outcome.plan.bytes_out, rel=0.05)


def test_shards_without_a_row_of_their_own_take_part_all_the_same() -> None:
    profile = make_profile(make_linear((2, 40_000), 3))
    outcome = step(profile, make_plain(4), replace(find_schedule("undertow"), policy="factors-to-shard"))
    assert outcome.plan.schemes["fc"] is Scheme.FACTORS_TO_SHARD
    assert len(outcome.steps_s) == 2


def test_a_tensor_without_elements_holds_nobody_up() -> None:
    profile = make_profile(make_layer("a", 0), make_layer("b", 0, 400_000))
    for system in list_schedules():
        assert len(step(profile, make_plain(2), system).steps_s) == 2, system


# Schedules against each other


SWEEP = [(2, 2e8), (4, 2e8), (4, 8e8)]
UNIFORM = make_profile(*(make_layer(name, 2_000_000, forward_s=0.05, backward_s=0.1) for name in "abcdef"))
HEAVY_END, HEAVY_START = (
    make_profile(*(make_layer(name, 400_000 << place, forward_s=0.05, backward_s=0.1) for name, place in order))
    for order in (zip("abcde", range(5), strict=True), zip("abcde", reversed(range(5)), strict=True))
)


@pytest.mark.parametrize(("hosts", "rate"), SWEEP)
@pytest.mark.parametrize("profile", [UNIFORM, HEAVY_END, HEAVY_START])
def test_mechanisms_never_make_a_step_longer(profile: Profile, hosts: int, rate: float) -> None:
    steps_s = {
        system: step(profile, make_plain(hosts, rate), system, costs=Costs()).iteration_s
        for system in ("ps", "wfbp", "undertow-no-hybrid", "undertow-no-hybrid-no-priority-no-gate")
    }
    assert steps_s["wfbp"] <= 1.001 * steps_s["ps"]
    assert steps_s["undertow-no-hybrid"] <= 1.01 * steps_s["undertow-no-hybrid-no-priority-no-gate"]
    assert min(steps_s.values()) >= 0.999 * profile.compute_s


@pytest.mark.parametrize("system", ["ps", "ddp", "p3", "undertow"])
def test_a_run_is_the_same_twice(system: str) -> None:
    pace = Noise(jitter=0.1, straggler_share=0.1, seed=3).pace
    first, second = (simulate(MIXED, make_topology(3, 1e8), find_schedule(system), DEVICE, pace=pace) for _ in range(2))
    assert first == second


# Unequal hosts


@pytest.mark.parametrize("system", ["ps", "wfbp", "ddp", "p3", "undertow"])
def test_a_slower_host_holds_everybody_up(system: str) -> None:
    hosts = tuple(Host(bandwidth_bits_per_s=2e10, slowdown=slowdown) for slowdown in (1.0, 2.0, 1.0))
    outcome = step(UNIFORM, Topology(hosts=hosts), system)
    assert outcome.iteration_s == pytest.approx(2 * UNIFORM.compute_s, rel=0.02)


@pytest.mark.parametrize("system", ["ps", "wfbp", "ddp", "p3", "undertow"])
def test_the_slowest_link_limits_everybody(system: str) -> None:
    slow, unequal, fast = (
        step(UNIFORM, make_unequal(rates), system).iteration_s for rates in ([4e7] * 3, [4e8, 4e7, 4e8], [4e8] * 3)
    )
    assert 0.9 * slow <= unequal <= 1.2 * slow
    assert fast < 0.5 * slow


def test_on_unequal_links_some_gradients_may_go_through_torchs_ring() -> None:
    """Each worker's bytes to the next one only: a slow link takes part in a ring, but is not the target of all."""
    topology = make_unequal([4e8, 4e7, 4e8, 4e8])
    profile = make_profile(*UNIFORM.layers, make_linear((500, 1000), 4))
    ours, torchs = (step(profile, topology, system) for system in ("undertow", "ddp"))
    assert Scheme.ALLREDUCE in ours.plan.schemes.values()
    assert ours.iteration_s <= 1.05 * torchs.iteration_s
    assert statistics.fmean(ours.bytes_out) == pytest.approx(ours.plan.bytes_out, rel=0.02)


@pytest.mark.parametrize(
    ("hosts", "rate"),
    [
        (4, 1e9),
        (8, 1e10),
        (2, 1e8),
        (16, 1e9),
    ],
)
def test_on_equal_links_the_planner_sees_their_rate_whatever_else_differs(hosts: int, rate: float) -> None:
    usual, slow = (Host(bandwidth_bits_per_s=rate, slowdown=slowdown) for slowdown in (1.0, 1.01))
    alike, unlike = make_topology(hosts, rate), Topology(hosts=(*[usual] * (hosts - 1), slow))
    known, measured = (find_cluster(UNIFORM, topology, DEVICE, Costs()).bytes_per_s for topology in (alike, unlike))
    assert measured == pytest.approx(known, rel=0.15)


def test_several_workers_of_a_host_need_several_times_the_link() -> None:
    crowded = Topology(hosts=(Host(bandwidth_bits_per_s=2e7, workers=2),) * 2, latency_s=0.0, goodput=1.0)
    for system in ("wfbp", "undertow"):
        outcome = step(UNIFORM, crowded, system)
        # Each of its workers sends half of a model to the shards elsewhere, and each of its shards as much back.
        assert outcome.bytes_out == [pytest.approx(2 * 12_000_000, rel=0.05)] * 2
        assert outcome.iteration_s == pytest.approx(2 * 12_000_000 * 8 / 2e7, rel=0.1)


# Noise


def make_subject(profile: Profile) -> Subject:
    return replace(find_subject("resnet50"), name="mine", batch=8, profile=profile, device=DEVICE)


def run_noisy(noise: Noise, steps: int = 12) -> Outcome:
    setting = Setting(noise=noise, steps=steps)
    return run(make_subject(UNIFORM), make_topology(4, 1e12), find_schedule("wfbp"), setting)


def test_the_same_seed_gives_the_same_steps_and_another_one_others() -> None:
    first, again, other = (run_noisy(Noise(jitter=0.1, seed=seed)).steps_s for seed in (1, 1, 2))
    assert first == again
    assert len(set(first)) == len(first)
    assert not set(first) & set(other)


def test_jitter_makes_the_median_step_longer_because_everybody_waits_for_the_slowest() -> None:
    silent, jittery, wild = (run_noisy(Noise(jitter=jitter, seed=1)).iteration_s for jitter in (0.0, 0.05, 0.2))
    assert 1.02 * silent < jittery < wild


def test_stragglers_make_a_step_longer_by_their_factor() -> None:
    noise = Noise(straggler_share=0.1, straggler_factor=3.0, seed=1)
    calm_s, steps_s = run_noisy(Noise()).iteration_s, run_noisy(noise).steps_s
    late = [step_s for step_s in steps_s if step_s > 1.1 * calm_s]
    assert 0 < len(late) < len(steps_s)
    # One that straggles begins its backward or its forward late; nobody is later than three times a step.
    assert max(late) == pytest.approx(3 * calm_s, rel=0.02)


def test_as_many_steps_are_counted_as_are_asked_for() -> None:
    assert len(run_noisy(Noise(), steps=5).steps_s) == 5


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"jitter": -0.1}, "jitter -0.1 is not possible"),
        ({"jitter": 1.0}, "jitter 1 is not possible"),
        ({"straggler_share": 1.5}, "share of stragglers 1.5 is not possible"),
        ({"straggler_factor": 0.5}, "straggler factor 0.5 is not possible"),
    ],
)
def test_impossible_noise_is_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Noise(**wrong)


# The gate and the engine, alone


class Slow:
    """A delivery that brings what a test lets it bring."""

    def __init__(self) -> None:
        self.here: set[int] = set()
        self.told: list[tuple[object, ...]] = []

    def begin(self, step: int) -> None:
        self.told.append(("begin", step))

    def ready(self, tensor: int) -> None:
        self.told.append(("ready", tensor))

    def end(self) -> None:
        self.told.append(("end",))

    def is_here(self, layer: int) -> bool:
        return layer in self.here


def test_a_layers_forward_never_starts_before_its_gradients_are_there() -> None:
    clock, delivery = Clock(), Slow()
    worker = Worker(clock, [Layer(1.0, 2.0, [2]), Layer(1.0, 2.0, [1, 0])], 1, lambda step: 1.0)
    worker.delivery = delivery

    def bring(layer: int) -> None:
        delivery.here.add(layer)
        worker.go_on()

    clock.at(0.0, worker.start)
    clock.at(1.0, bring, 1)  # long before it is needed
    clock.at(5.0, worker.go_on)  # something else has come
    clock.at(10.0, bring, 0)
    clock.run()
    assert delivery.told == [("begin", 0), ("ready", 0), ("ready", 1), ("ready", 2), ("end",)]
    assert worker.ends_s == [12.0]


def test_a_worker_takes_longer_by_its_pace() -> None:
    clock, delivery = Clock(), Slow()
    delivery.here = {0}
    worker = Worker(clock, [Layer(1.0, 2.0, [])], 3, lambda step: [1.0, 2.0, 0.5][step])
    worker.delivery = delivery
    clock.at(0.0, worker.start)
    clock.run()
    assert worker.ends_s == [3.0, 9.0, 10.5]


Handled = list[tuple[float, int]]


def expect(costs: Costs, *frames: tuple[float, int, int]) -> Handled:
    """An engine that is told of frames: when each arrives, whose it is, and how many bytes it has."""
    clock, handled = Clock(), []
    times = {"silence_timeout_s": 1.0, "stall_timeout_s": 1.0}
    shape = Shape(rank=0, hosts=["a", "b", "c"], job=0, sizes=Sizes(), credit_bytes=1 << 30, **times)
    engine = Engine(clock, Fabric(clock, make_plain(3)), shape, costs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._exchange, "handle", lambda peer, header, body: handled.append((clock.now_s, header.key)))
        for key, (arrival_s, sender, length) in enumerate(frames):
            kind = Frame.PUSH if length else Frame.RECEIVED
            engine.expect(arrival_s, (sender, Header(kind, key, rank=sender, length=length), None))
        clock.run()
    return handled


def test_an_engine_handles_one_frame_after_the_other() -> None:
    costs = Costs(message_s=0.25, byte_s=0.001)
    assert expect(costs, (1.0, 1, 500), (1.0, 2, 500), (9.0, 1, 500)) == [(1.75, 0), (2.5, 1), (9.75, 2)]


@pytest.mark.parametrize("message_s", [0.25, 0.0])
def test_an_engine_handles_the_frames_of_one_sender_in_their_order(message_s: float) -> None:
    """Also if a small one was not held up on its way."""
    frames = ((1.0, 2, 500), (2.0, 1, 500), (1.5, 1, 0), (2.0, 1, 500))
    handled = expect(Costs(message_s=message_s, byte_s=0.001), *frames)
    assert [key for _, key in handled if key] == [1, 2, 3]


def test_an_engine_handles_slices_as_they_arrive_whenever_they_left() -> None:
    """One through a crowded uplink, one from the same rack."""
    assert expect(FREE, (9.0, 1, 500), (1.0, 2, 500)) == [(pytest.approx(1), 1), (pytest.approx(9), 0)]


# Points


def test_points_have_the_fields_of_measured_ones() -> None:
    subject, topology = make_subject(UNIFORM), make_topology(4, 1e8)
    progress = FakeProgress()
    first, second = make_points(subject, topology, ["undertow", "wfbp"], progress=progress)
    names = ["undertow", "wfbp", "ddp"]  # what gains are over is run unasked
    assert progress.said == [f"mine, hosts 4: {name}" for name in names]
    assert progress.done == pytest.approx(3 * weigh(topology, Setting()))
    ddp_s = run(subject, topology, find_schedule("ddp"), Setting()).iteration_s
    assert (first.system, second.system) == ("undertow", "wfbp")
    for point in (first, second):
        assert (point.model, point.hosts, point.bandwidth_gbit, point.batch) == ("mine", 4, 0.1, 8)
        assert (point.origin, point.scale, point.slowdown, point.cpu_s) == ("simulated", 1.0, 1.0, None)
        assert point.compute_s == pytest.approx(UNIFORM.compute_s)
        assert point.speedup == pytest.approx(4 * UNIFORM.compute_s / point.iteration_s)
        assert point.gain_over_ddp == pytest.approx(ddp_s / point.iteration_s)
        assert point.exposed_s == pytest.approx(point.iteration_s - UNIFORM.compute_s)
        assert point.bytes_out_per_host == pytest.approx(1.5 * 12_000_000, rel=0.02)
        assert UNIFORM.compute_s <= point.bound_s <= point.iteration_s
        assert point.iteration_low_s <= point.iteration_s <= point.iteration_high_s


def test_what_gains_are_over_is_run_once() -> None:
    assert list_runs(["undertow", "ddp"]) == ["undertow", "ddp"]
    assert list_runs(["undertow", "wfbp"]) == ["undertow", "wfbp", "ddp"]


@pytest.mark.parametrize(
    ("hosts", "setting"),
    [(1, Setting()), (3, Setting()), (3, Setting(steps=1)), (3, Setting(noise=Noise(jitter=0.1))), (128, Setting())],
)
@pytest.mark.parametrize("system", ["undertow", "ddp"])
def test_a_run_tells_step_by_step_how_far_it_is(hosts: int, system: str, setting: Setting) -> None:
    told: list[float] = []
    progress, topology = FakeProgress(), make_topology(hosts, 1e9)
    progress.advance = told.append  # type: ignore[assignment, method-assign]
    run(make_subject(UNIFORM), topology, find_schedule(system), setting, progress)
    assert sum(told) == pytest.approx(weigh(topology, setting))
    assert len(told) == 1 + hosts * (setting.count_all_steps(topology) - 1)
    assert progress.expected == 0  # who starts several runs knows how many


def test_unknown_systems_are_refused_with_the_known_ones() -> None:
    for name in ("horovod", "undertow-no-", "undertow-no-sleep", "ps-no-gate", "undertow-no-gate-no-sleep"):
        with pytest.raises(ConfigError, match=r"unknown system .*known: ps, .*undertow-no-hybrid"):
            find_schedule(name)
    both = find_schedule("undertow-no-gate-no-priority")
    assert not both.has_gates
    assert both.about == "undertow without gate and priority"
