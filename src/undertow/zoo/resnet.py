"""ResNet-50 and ResNet-152 (He et al., 2015), stride in the 3 x 3 as in torchvision, whose names these are."""

from __future__ import annotations

from undertow.zoo.network import Conv, GlobalPool, Linear, Network, Node, Pool, Pooling, Residual, Size, chain

_EXPANSION = 4  # a bottleneck's output channels for each inner one


def resnet50(size: Size) -> Network:
    return _resnet(size, depths=(3, 4, 6, 3))


def resnet152(size: Size) -> Network:
    return _resnet(size, depths=(3, 8, 36, 3))


def _resnet(size: Size, *, depths: tuple[int, ...]) -> Network:
    small = size is Size.CIFAR
    return Network(
        input=(3, 32, 32) if small else (3, 224, 224),
        body=chain(
            _conv("conv1", "bn1", 64, 7, stride=2),
            *(() if small else (Pool(pooling=Pooling.MAX, kernel=3, stride=2, padding=1),)),
            *(_stage(number, depth) for number, depth in enumerate(depths, start=1)),
            GlobalPool(),
            Linear(name="fc", out=10 if small else 1000, relu=False),
        ),
    )


def _stage(number: int, depth: int) -> Node:
    width = 32 << number
    first_stride = 1 if number == 1 else 2
    return chain(
        *(
            _bottleneck(f"layer{number}.{place}", width, stride=1 if place else first_stride, is_first=place == 0)
            for place in range(depth)
        )
    )


def _bottleneck(at: str, width: int, *, stride: int, is_first: bool) -> Node:
    out = width * _EXPANSION
    return Residual(
        chain(
            _conv(f"{at}.conv1", f"{at}.bn1", width, 1),
            _conv(f"{at}.conv2", f"{at}.bn2", width, 3, stride=stride),
            _conv(f"{at}.conv3", f"{at}.bn3", out, 1, relu=False),
        ),
        # The first block of a stage changes the shape, so its shortcut must too.
        _conv(f"{at}.downsample.0", f"{at}.downsample.1", out, 1, stride=stride, relu=False) if is_first else None,
    )


def _conv(name: str, norm: str, out: int, kernel: int, *, stride: int = 1, relu: bool = True) -> Conv:
    around = kernel // 2
    return Conv(
        name=name,
        out=out,
        kernel=(kernel, kernel),
        stride=stride,
        padding=(around, around),
        bias=False,
        norm=norm,
        relu=relu,
    )
