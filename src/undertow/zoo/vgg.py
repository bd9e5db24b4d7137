"""VGG19 (Simonyan and Zisserman, 2014), and Poseidon's variant of it for all 21,841 classes of ImageNet.

Nothing has to be adapted to small images: five poolings leave one pixel of 32 x 32.
"""

from __future__ import annotations

from undertow.zoo.network import Conv, Linear, Network, Node, Pool, Pooling, Size, chain

# Output channels and number of convolutions of each stage.
_STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


def vgg19(size: Size) -> Network:
    return _vgg19(size, classes=1000 if size is Size.PUBLISHED else 10)


def vgg19_22k(size: Size) -> Network:
    return _vgg19(size, classes=21841)


def _vgg19(size: Size, *, classes: int) -> Network:
    return Network(
        input=(3, 224, 224) if size is Size.PUBLISHED else (3, 32, 32),
        body=chain(
            *(_stage(number, out, depth) for number, (out, depth) in enumerate(_STAGES, start=1)),
            Linear(name="fc6", out=4096),
            Linear(name="fc7", out=4096),
            Linear(name="fc8", out=classes, relu=False),
        ),
    )


def _stage(number: int, out: int, depth: int) -> Node:
    convs = (
        Conv(name=f"conv{number}_{place}", out=out, kernel=(3, 3), padding=(1, 1)) for place in range(1, depth + 1)
    )
    return chain(*convs, Pool(pooling=Pooling.MAX, kernel=2, stride=2))
