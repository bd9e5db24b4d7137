"""Ready-made benches.

`quick` shows in a few minutes where the network is the limit and where it is not.
`papers` measures what the papers report (Poseidon, ATC 2017; P3, MLSys 2019), as far as a
single machine can emulate it: their models, hosts and bandwidths, beside torch DDP.
"""

from __future__ import annotations

from undertow.errors import ConfigError
from undertow.lab.bench.series import Series

SYSTEMS = ("ddp", "undertow")
# P3 throttles its network from 1 to 30 Gbit/s; 40 is what Poseidon has.
P3_GBIT = (2.0, 4.0, 10.0, 15.0, 20.0, 30.0)


def find_preset(name: str) -> list[Series]:
    presets = {"quick": _quick, "papers": _papers}
    if name not in presets:
        raise ConfigError(f"unknown preset {name!r}; known: {', '.join(presets)}")
    return presets[name]()


def _quick() -> list[Series]:
    wanted = {"resnet50": (4.0, 10.0), "vgg19": (10.0,)}
    return [
        Series(model=model, hosts=4, bandwidths_gbit=speeds, scale=10.0, systems=SYSTEMS, rounds=2, lap_s=2.0)
        for model, speeds in wanted.items()
    ]


def _papers() -> list[Series]:
    p3 = [
        Series(model=model, hosts=4, bandwidths_gbit=P3_GBIT, scale=10.0, systems=SYSTEMS, rounds=2)
        for model in ("resnet50", "inception-v3", "vgg19", "sockeye")
    ]
    p3.append(Series(model="vgg19", hosts=8, bandwidths_gbit=(10.0,), scale=20.0, systems=SYSTEMS, rounds=2))
    # More hosts share the same two cores or so: the more there are, the smaller everything must be.
    poseidon = [
        Series(model="vgg19-22k", hosts=hosts, bandwidths_gbit=(10.0, 40.0), scale=scale, systems=SYSTEMS, rounds=2)
        for hosts, scale in ((4, 20.0), (8, 50.0), (16, 100.0))
    ]
    poseidon += [
        Series(model=model, hosts=8, bandwidths_gbit=(40.0,), scale=50.0, systems=SYSTEMS, rounds=2)
        for model in ("inception-v3", "resnet152", "googlenet", "alexnet")
    ]
    return [*p3, *poseidon]
