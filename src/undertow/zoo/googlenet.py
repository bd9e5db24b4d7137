"""GoogLeNet (Szegedy et al., 2014) as published: biases, no batch norm, without the auxiliary heads.

Names are torchvision's; its 5 x 5 branch is really 3 x 3, ours is the paper's.
"""

from __future__ import annotations

from undertow.zoo.network import Conv, GlobalPool, Linear, Network, Node, Pool, Pooling, Size, branches, chain

# The paper's table 1: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, behind the pooling.
_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
_POOL = Pool(pooling=Pooling.MAX, kernel=3, stride=2, ceil=True)


def googlenet(size: Size) -> Network:
    small = size is Size.CIFAR
    return Network(
        input=(3, 32, 32) if small else (3, 224, 224),
        body=chain(
            _conv("conv1", 64, 7, stride=2),
            *(() if small else (_POOL,)),
            _conv("conv2", 64, 1),
            _conv("conv3", 192, 3),
            _POOL,
            *(_inception(name) for name in ("3a", "3b")),
            _POOL,
            *(_inception(name) for name in ("4a", "4b", "4c", "4d", "4e")),
            _POOL,
            *(_inception(name) for name in ("5a", "5b")),
            GlobalPool(),
            Linear(name="fc", out=10 if small else 1000, relu=False),
        ),
    )


def _inception(name: str) -> Node:
    at = f"inception{name}"
    ones, threes_in, threes, fives_in, fives, pooled = _INCEPTIONS[name]
    return branches(
        _conv(f"{at}.branch1", ones, 1),
        chain(_conv(f"{at}.branch2.0", threes_in, 1), _conv(f"{at}.branch2.1", threes, 3)),
        chain(_conv(f"{at}.branch3.0", fives_in, 1), _conv(f"{at}.branch3.1", fives, 5)),
        chain(Pool(pooling=Pooling.MAX, kernel=3, stride=1, padding=1), _conv(f"{at}.branch4.1", pooled, 1)),
    )


def _conv(name: str, out: int, kernel: int, *, stride: int = 1) -> Conv:
    around = kernel // 2
    return Conv(name=f"{name}.conv", out=out, kernel=(kernel, kernel), stride=stride, padding=(around, around))
