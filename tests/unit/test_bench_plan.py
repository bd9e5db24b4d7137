"""What a bench is asked for: plans that are refused before anything starts, and those that are ready-made."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.bench_fakes import make_series
from undertow.errors import ConfigError
from undertow.lab.bench.presets import find_preset
from undertow.lab.cabling import MAX_HOSTS
from undertow.lab.real.names import REAL_NAMES


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "resnet5000"}, "unknown model 'resnet5000'"),
        ({"systems": ("ddp", "magic")}, "unknown system 'magic'; known: ddp"),
        ({"hosts": 1}, "--hosts 1: at least two"),
        ({"hosts": 0}, "--hosts 0: at least two"),
        ({"hosts": MAX_HOSTS + 1}, "251 hosts are not possible"),
        ({"systems": ()}, "--systems is empty"),
        ({"scale": 0.0}, "--scale 0 is not possible"),
        ({"scale": -10.0}, "--scale -10 is not possible"),
        ({"scale": float("inf")}, "--scale inf is not possible"),
        ({"scale": float("nan")}, "--scale nan is not possible"),
        ({"rounds": 1}, "--rounds 1 is not enough"),
        ({"rounds": -4}, "--rounds -4 is not enough"),
        ({"batch": 0}, "--batch 0 is not possible"),
        ({"batch": -1}, "--batch -1 is not possible"),
        ({"lap_s": 0.0}, "--lap 0 is not possible"),
        ({"lap_s": -1.0}, "--lap -1 is not possible"),
        ({"lap_s": float("nan")}, "--lap nan is not possible"),
        ({"lap_s": float("inf")}, "--lap inf is not possible"),
        ({"model": "gpt", "scale": 10.0}, "gpt computes for real and cannot be scaled: leave --scale out"),
    ],
)
def test_the_impossible_is_refused_before_anything_is_started(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_series(**changes)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_compute_alone_is_measured_beside_a_real_task() -> None:
    assert make_series(model="gpt", scale=1.0).all_systems == ("local", "ddp", "undertow")
    assert make_series(model="gpt", scale=1.0, systems=("ddp", "local")).all_systems == ("ddp", "local")
    assert make_series().all_systems == ("ddp", "undertow")  # where its time is nominal there is nothing to measure


def test_laps_are_those_of_all_systems_rounds_and_bandwidths_with_starts_checks_and_warm_ups() -> None:
    assert make_series(bandwidths_gbit=(1.0, 2.0, 4.0)).laps == 2 + 3 * (1 + 2 + 2 * 4)
    assert make_series(model="gpt", scale=1.0).laps == 3 + (1 + 3 + 3 * 4)


def test_a_series_describes_itself() -> None:
    assert make_series().describe(10.0) == "resnet50, 4 hosts, 10 Gbit/s"
    assert make_series().describe(0.4) == "resnet50, 4 hosts, 400 Mbit/s"
    assert make_series().describe(None) == "resnet50, 4 hosts, unshaped"


# Presets


@pytest.mark.parametrize("name", ["quick", "papers"])
def test_presets_are_well_formed(name: str) -> None:
    plan = find_preset(name)
    assert plan
    for series in plan:
        assert {"ddp", "undertow"} <= set(series.systems)
        assert 2 <= series.hosts <= MAX_HOSTS
        assert series.bandwidths_gbit
        for bandwidth_gbit in series.bandwidths_gbit:
            assert bandwidth_gbit is not None
            # As fast as a single machine can carry it for all hosts, and slow enough that it can be checked.
            assert 0.05 <= bandwidth_gbit / series.scale <= 4.0
    points = Counter((s.model, s.hosts, b, name) for s in plan for b in s.bandwidths_gbit for name in s.systems)
    assert set(points.values()) == {1}


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as error:
        find_preset("slow")
    assert str(error.value) == "unknown preset 'slow'; known: quick, papers"


def test_every_real_task_can_be_planned() -> None:
    for name in REAL_NAMES:
        assert replace(make_series(scale=1.0), model=name).all_systems[0] == "local"
