"""Models by name, with their published rates.

In: a name.  Out: its description (`NETWORKS`), or the whole `Model` (`MODELS`, made on first use).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from undertow.errors import ConfigError
from undertow.tools.zoo.architectures import alexnet, googlenet, inception_v3, resnet50, resnet152, vgg19, vgg19_22k
from undertow.tools.zoo.model import Layer, Model, read_layers
from undertow.tools.zoo.network import Network, Size
from undertow.tools.zoo.sockeye import Dimensions, sockeye_layers

NETWORKS: Mapping[str, Callable[[Size], Network]] = {
    "alexnet": alexnet,
    "vgg19": vgg19,
    "vgg19-22k": vgg19_22k,
    "googlenet": googlenet,
    "inception-v3": inception_v3,
    "resnet50": resnet50,
    "resnet152": resnet152,
}


@dataclass(frozen=True)
class _Published:
    """Figures that the papers give for a model besides its shape."""

    title: str
    batch: int
    samples_per_s: float | None  # None: not published, so it is scaled from ResNet-50's by flops
    source: str


_PUBLISHED: Mapping[str, _Published] = {
    "alexnet": _Published(
        "AlexNet", 256, 256 / 0.25, "Poseidon (ATC 2017): 0.25 s per iteration of 256 images, one Titan X."
    ),
    "vgg19": _Published("VGG19", 32, 38.2, "Poseidon (ATC 2017): TensorFlow, one Titan X."),
    "vgg19-22k": _Published("VGG19-22K", 32, 34.6, "Poseidon (ATC 2017): Caffe, one Titan X."),
    "googlenet": _Published("GoogLeNet", 128, 257.0, "Poseidon (ATC 2017): Caffe, one Titan X."),
    "inception-v3": _Published("Inception-V3", 32, 43.2, "Poseidon (ATC 2017): TensorFlow, one Titan X."),
    "resnet50": _Published(
        "ResNet-50", 32, 110.0, "Approximate, from no table: one P4000, the device of P3 (MLSys 2019)."
    ),
    "resnet152": _Published(
        "ResNet-152", 32, None, "An estimate, none is published: ResNet-50's 110 images/s, scaled by flops."
    ),
    "sockeye": _Published(
        "Sockeye", 32, 100.0, "An estimate, none is published: 100 sentences/s of 25 tokens on one P4000."
    ),
}


@cache
def _layers(name: str) -> tuple[Layer, ...]:
    return sockeye_layers(Dimensions()) if name == "sockeye" else read_layers(NETWORKS[name](Size.PUBLISHED))


@cache
def _make(name: str) -> Model:
    published = _PUBLISHED[name]
    return Model(
        name=name,
        title=published.title,
        layers=_layers(name),
        batch=published.batch,
        samples_per_s=published.samples_per_s or _scaled_rate(name),
        source=published.source,
    )


def _scaled_rate(name: str) -> float:
    """Return samples per second on the device that trains ResNet-50, at the same flops per second."""
    flops = sum(layer.flops for layer in _layers(name))
    return MODELS["resnet50"].flops_per_s / (3 * flops)


class _Catalogue(Mapping[str, Model]):
    """Mapping of all models; listing the names does not make them."""

    def __getitem__(self, name: str) -> Model:
        if name not in _PUBLISHED:
            raise KeyError(name)
        return _make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_PUBLISHED)

    def __len__(self) -> int:
        return len(_PUBLISHED)


MODELS: Mapping[str, Model] = _Catalogue()


def find_model(name: str) -> Model:
    """Return the model of this name; raise `ConfigError` with the known names if there is none."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]


def unknown_name(what: str, name: str, known: Iterable[str]) -> ConfigError:
    import difflib  # only for a mistyped name

    names = tuple(known)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ConfigError(f"unknown {what} {name!r}; {hint}known: {', '.join(names)}")
