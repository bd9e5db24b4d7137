"""Options of `undertow simulate` alone."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

from undertow import bounds
from undertow.cli.options import option, sharing

SYSTEMS, SHARING_SYSTEMS = "ddp,undertow", "plain,undertow"  # defaults of --systems
# Options that the help shows in panels of their own.
_noise = functools.partial(option, panel="Noise")
_questions = functools.partial(option, panel="Searches and comparisons")

Model = Annotated[
    str | None, option("--model NAME", "Simulate a model of the zoo; `undertow bench --list` lists them.")
]
Profile = Annotated[
    Path | None,
    option(
        "--profile FILE",
        "Simulate your own model from a file that `undertow plan --save-profile FILE script.py` wrote.",
    ),
]
Systems = Annotated[
    str | None,
    option(
        "--systems NAME,...",
        f"Compare these systems; --list shows their names. Default: {SYSTEMS}; with --share, {SHARING_SYSTEMS}.",
    ),
]
Steps = Annotated[
    int | None,
    option("--steps N", "Simulate N steps that count. Default: as many as the result needs.", bounds=bounds.STEPS),
]
Trace = Annotated[
    Path | None, option("--trace DIR", "Record a few steps of one cluster in this folder, like `undertow run --trace`.")
]
Share = Annotated[str | None, sharing("--share MODEL,...", "Share the hosts with jobs of these models, such as vgg19.")]
ListSystems = Annotated[bool, option("--list", "List the systems.")]

# Clusters

Hosts = Annotated[str, option("--hosts N,...", "Simulate this many hosts, such as 4 or 1,2,4,8.")]
Bandwidth = Annotated[
    str, option("--bandwidth SPEED,...", "Simulate links of these speeds, each way, such as 10gbit or 1,2,4gbit.")
]
Latency = Annotated[str, option("--latency TIME", "Set the one-way latency between hosts, such as 50us or 0.1ms.")]
ClusterFile = Annotated[
    Path | None,
    option("--cluster FILE.json", "Read unequal links, slow hosts and racks from this file (docs/simulator.md)."),
]

# Noise

Jitter = Annotated[
    str, _noise("--jitter SHARE", "Vary the times of each worker's steps by this standard deviation, such as 5%.")
]
Stragglers = Annotated[
    str, _noise("--stragglers SHARE", "Slow each worker down in this share of its steps, such as 1%.")
]
Straggle = Annotated[float, _noise("--straggle FACTOR", "Slow stragglers down by this factor.", bounds=bounds.STRAGGLE)]
Seed = Annotated[
    int, _noise("--seed SEED", "Seed jitter and stragglers; equal seeds give equal steps.", bounds=bounds.SEED)
]

# Searches and comparisons

FindBandwidth = Annotated[
    str | None,
    _questions("--find-bandwidth 90%", "Find the bandwidth that is needed for this share of linear speed-up."),
]
FindHosts = Annotated[
    str | None,
    _questions(
        "--find-hosts 50%",
        "Find the largest number of hosts at which each added host still gains this share of a host's speed.",
    ),
]
Against = Annotated[
    Path | None,
    _questions("--against FILE.json", "Predict every point that `undertow bench` measured in this file, and compare."),
]
