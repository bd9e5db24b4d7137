"""Any content of a profile, plan, cluster or result file is either used or refused in one line."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tests.support.damage import damage_file
from tests.support.report_samples import results, sweep
from undertow.cli.plan import make_plan_table
from undertow.errors import PlanError, UndertowError
from undertow.observe.report.compare import compare, list_differences, make_comparison_table
from undertow.observe.report.page import make_page
from undertow.observe.report.points import read_results, write_results
from undertow.observe.report.table import make_table
from undertow.plan.cluster import Cluster
from undertow.plan.measured import Measured, read_measured
from undertow.plan.plan import read_plan
from undertow.plan.planner import make_plan
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile
from undertow.tools.sim.subject import take_measured
from undertow.tools.sim.sweep import Setting, make_points
from undertow.tools.sim.topology import make_topology, read_topology

MUTATIONS = 100
MOST_PAGES = 15  # a page has a picture, which takes its time
PROFILE = Profile(
    layers=(
        LayerProfile(
            name="embed",
            tensors=(TensorProfile(name="embed.weight", shape=(50, 8), kind=LayerKind.EMBEDDING, rows=4.0),),
            forward_s=0.001,
            backward_s=0.002,
        ),
        LayerProfile(
            name="fc",
            tensors=(
                TensorProfile(name="fc.weight", shape=(64, 32), kind=LayerKind.LINEAR, rows=4.0),
                TensorProfile(name="fc.bias", shape=(64,)),
            ),
            forward_s=0.001,
            backward_s=0.002,
        ),
    )
)
MEASURED = Measured(profile=PROFILE, flops_per_s=1e12, shard_flops_per_s=1e10, add_bytes_per_s=2e9, has_gates=True)
CLUSTER = {
    "latency_us": 100,
    "racks": {"left": "20gbit", "right": "20gbit"},
    "hosts": [
        {"count": 2, "bandwidth": "10gbit", "rack": "left"},
        {"count": 1, "bandwidth": "1gbit", "rack": "right", "slowdown": 1.5, "workers": 2},
    ],
}


def to_text(shown: Any) -> str:
    console = Console(width=160, force_terminal=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def use_profile(path: Path) -> str:
    subject = take_measured(path.name, read_measured(path))
    cluster = Cluster(workers=4, bytes_per_s=1e9, **dataclasses.asdict(subject.device))
    made = make_plan(subject.profile, cluster, has_gates=subject.has_gates)
    msgspec.json.encode(made)
    list(make_points(subject, make_topology(2, 1e10), ["undertow"], setting=Setting()))
    return to_text(make_plan_table(made))


def use_plan(path: Path) -> str:
    return to_text(make_plan_table(read_plan(path)))


def use_cluster(path: Path) -> str:
    topology = read_topology(path)
    return f"{topology.slowest_bits_per_s:g}"


def use_results(path: Path) -> str:
    read = read_results(path)
    return to_text(make_table(read.points)) + make_page(read)


def use_results_twice(path: Path) -> str:
    read = read_results(path)
    return to_text(make_comparison_table(compare(read, read), notes=list_differences(read, read)))


def list_cases(folder: Path) -> dict[Callable[[Path], str], Any]:
    made = make_plan(PROFILE, Cluster(workers=4, bytes_per_s=1e9, flops_per_s=1e12, shard_flops_per_s=1e10))
    write_results(results(sweep()), folder / "results.json")
    kept = json.loads((folder / "results.json").read_bytes())
    kept["points"] = kept["points"][:4]
    return {
        use_profile: json.loads(msgspec.json.encode(MEASURED)),
        use_plan: json.loads(made.to_json()),
        use_cluster: CLUSTER,
        use_results: kept,
        use_results_twice: kept,
    }


def try_damaged(folder: Path, use: Callable[[Path], str], document: Any, seed: int) -> bool:
    path = folder / "file.json"
    path.write_bytes(damage_file(random.Random(seed), document))
    try:
        shown = use(path)
    except UndertowError:
        return False
    assert "\x1b" not in shown
    return True


@pytest.mark.parametrize("use", [use_profile, use_plan, use_cluster, use_results, use_results_twice])
def test_a_damaged_file_is_used_or_refused(tmp_path: Path, use: Callable[[Path], str]) -> None:
    document = list_cases(tmp_path)[use]
    (tmp_path / "file.json").write_text(json.dumps(document))
    assert use(tmp_path / "file.json")
    count = MOST_PAGES if use is use_results else MUTATIONS
    used = sum(try_damaged(tmp_path, use, document, seed) for seed in range(count))
    assert 0 < used < count


def test_a_profile_of_more_parameters_than_any_model_has_is_refused(tmp_path: Path) -> None:
    """Each tensor may be possible, and all of them together would take hours to plan."""
    tensors = tuple(TensorProfile(name=f"t{number}", shape=(1 << 36,)) for number in range(17))
    layer = LayerProfile(name="fc", tensors=tensors, forward_s=0.1, backward_s=0.2)
    msgspec.structs.replace(MEASURED, profile=Profile(layers=(layer,))).write(tmp_path / "profile.json")
    with pytest.raises(PlanError, match="the number of parameters is 1168231104512, which is not possible"):
        read_measured(tmp_path / "profile.json")
