"""Published convolutional networks, each for images of the published size and of 32 x 32.

In: a size.  Out: the description of a network.
- AlexNet (Krizhevsky et al., 2012) with its two groups, as in Caffe's reference model.
- VGG19 (Simonyan and Zisserman, 2014), and Poseidon's variant for all 21,841 classes of ImageNet.
- GoogLeNet (Szegedy et al., 2014) as published: biases, no batch norm, without the auxiliary heads.  Names are
  torchvision's, but the 5 x 5 branch is the paper's: torchvision's is 3 x 3.
- Inception-V3 (Szegedy et al., 2015) with its auxiliary head; names and shapes are torchvision's.
- ResNet-50 and ResNet-152 (He et al., 2015), stride in the 3 x 3 as in torchvision, whose names these are.
"""

from __future__ import annotations

from undertow.tools.zoo.network import (
    AuxiliaryHead,
    Conv,
    GlobalPool,
    Linear,
    Network,
    Node,
    Pair,
    Pool,
    Pooling,
    Residual,
    Size,
    branches,
    chain,
    square_conv,
)

_SHRINK = Pool(pooling=Pooling.MAX, kernel=3, stride=2)
_SHRINK_OVER_EDGE = Pool(pooling=Pooling.MAX, kernel=3, stride=2, ceil=True)
_SMOOTH = Pool(pooling=Pooling.AVERAGE, kernel=3, stride=1, padding=1)
# VGG19: output channels and number of convolutions of each stage.
_STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
# GoogLeNet's table 1: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, after the pooling.
_GOOGLE_BLOCKS = {
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
_EXPANSION = 4  # output channels of a bottleneck of ResNet for each inner one


def _network(size: Size, pixels: int, *parts: Node) -> Network:
    """Return a network whose published images are `pixels` wide and high."""
    width = 32 if size is Size.CIFAR else pixels
    return Network(input=(3, width, width), body=chain(*parts))


def _classes(size: Size) -> int:
    return 10 if size is Size.CIFAR else 1000


def alexnet(size: Size) -> Network:
    return _network(
        size,
        227,
        Conv(name="conv1", out=96, kernel=(11, 11), stride=2, padding=(5, 5))  # 32 -> 16
        if size is Size.CIFAR
        else chain(Conv(name="conv1", out=96, kernel=(11, 11), stride=4), _SHRINK),  # 227 -> 55 -> 27
        Conv(name="conv2", out=256, kernel=(5, 5), padding=(2, 2), groups=2),
        _SHRINK,
        Conv(name="conv3", out=384, kernel=(3, 3), padding=(1, 1)),
        Conv(name="conv4", out=384, kernel=(3, 3), padding=(1, 1), groups=2),
        Conv(name="conv5", out=256, kernel=(3, 3), padding=(1, 1), groups=2),
        _SHRINK,
        *_classifier(_classes(size)),
    )


def vgg19(size: Size) -> Network:
    return _vgg19(size, _classes(size))


def vgg19_22k(size: Size) -> Network:
    return _vgg19(size, 21841)


def _vgg19(size: Size, classes: int) -> Network:
    # Nothing has to be adapted to small images: five poolings leave one pixel of 32 x 32.
    stages = (_vgg_stage(number, out, depth) for number, (out, depth) in enumerate(_STAGES, start=1))
    return _network(size, 224, *stages, *_classifier(classes))


def _vgg_stage(number: int, out: int, depth: int) -> Node:
    convs = (square_conv(f"conv{number}_{place}", out, 3) for place in range(1, depth + 1))
    return chain(*convs, Pool(pooling=Pooling.MAX, kernel=2, stride=2))


def _classifier(classes: int) -> tuple[Linear, ...]:
    return (
        Linear(name="fc6", out=4096),
        Linear(name="fc7", out=4096),
        Linear(name="fc8", out=classes, relu=False),
    )


def googlenet(size: Size) -> Network:
    return _network(
        size,
        224,
        _google_conv("conv1", 64, 7, stride=2),
        *(() if size is Size.CIFAR else (_SHRINK_OVER_EDGE,)),
        _google_conv("conv2", 64, 1),
        _google_conv("conv3", 192, 3),
        _SHRINK_OVER_EDGE,
        *(_google_block(name) for name in ("3a", "3b")),
        _SHRINK_OVER_EDGE,
        *(_google_block(name) for name in ("4a", "4b", "4c", "4d", "4e")),
        _SHRINK_OVER_EDGE,
        *(_google_block(name) for name in ("5a", "5b")),
        GlobalPool(),
        Linear(name="fc", out=_classes(size), relu=False),
    )


def _google_block(name: str) -> Node:
    at = f"inception{name}"
    ones, threes_in, threes, fives_in, fives, pooled = _GOOGLE_BLOCKS[name]
    return branches(
        _google_conv(f"{at}.branch1", ones, 1),
        chain(_google_conv(f"{at}.branch2.0", threes_in, 1), _google_conv(f"{at}.branch2.1", threes, 3)),
        chain(_google_conv(f"{at}.branch3.0", fives_in, 1), _google_conv(f"{at}.branch3.1", fives, 5)),
        chain(Pool(pooling=Pooling.MAX, kernel=3, stride=1, padding=1), _google_conv(f"{at}.branch4.1", pooled, 1)),
    )


def _google_conv(name: str, out: int, kernel: int, *, stride: int = 1) -> Conv:
    return square_conv(f"{name}.conv", out, kernel, stride=stride)


def inception_v3(size: Size) -> Network:
    small, classes = size is Size.CIFAR, _classes(size)
    shrink = () if small else (_SHRINK,)
    return _network(
        size,
        299,
        _inception_conv("Conv2d_1a_3x3", 32, (3, 3), stride=2),
        _inception_conv("Conv2d_2a_3x3", 32, (3, 3)),
        _inception_same("Conv2d_2b_3x3", 64, (3, 3)),
        *shrink,
        _inception_conv("Conv2d_3b_1x1", 80),
        _inception_conv("Conv2d_4a_3x3", 192, (3, 3)),
        *shrink,
        _inception_block_a("Mixed_5b", pooled=32),
        _inception_block_a("Mixed_5c", pooled=64),
        _inception_block_a("Mixed_5d", pooled=64),
        _inception_block_b("Mixed_6a"),
        _inception_block_c("Mixed_6b", inner=128),
        _inception_block_c("Mixed_6c", inner=160),
        _inception_block_c("Mixed_6d", inner=160),
        _inception_block_c("Mixed_6e", inner=192),
        AuxiliaryHead(_inception_head("AuxLogits", classes, small=small)),
        _inception_block_d("Mixed_7a"),
        _inception_block_e("Mixed_7b"),
        _inception_block_e("Mixed_7c"),
        GlobalPool(),
        Linear(name="fc", out=classes, relu=False),
    )


def _inception_head(at: str, classes: int, *, small: bool) -> Node:
    pool = () if small else (Pool(pooling=Pooling.AVERAGE, kernel=5, stride=3),)
    return chain(
        *pool,
        _inception_conv(f"{at}.conv0", 128),
        _inception_conv(f"{at}.conv1", 768, (5, 5)),
        GlobalPool(),
        Linear(name=f"{at}.fc", out=classes, relu=False),
    )


def _inception_block_a(at: str, *, pooled: int) -> Node:
    return branches(
        _inception_conv(f"{at}.branch1x1", 64),
        chain(_inception_conv(f"{at}.branch5x5_1", 48), _inception_same(f"{at}.branch5x5_2", 64, (5, 5))),
        chain(
            _inception_conv(f"{at}.branch3x3dbl_1", 64),
            _inception_same(f"{at}.branch3x3dbl_2", 96, (3, 3)),
            _inception_same(f"{at}.branch3x3dbl_3", 96, (3, 3)),
        ),
        chain(_SMOOTH, _inception_conv(f"{at}.branch_pool", pooled)),
    )


def _inception_block_b(at: str) -> Node:
    return branches(
        _inception_conv(f"{at}.branch3x3", 384, (3, 3), stride=2),
        chain(
            _inception_conv(f"{at}.branch3x3dbl_1", 64),
            _inception_same(f"{at}.branch3x3dbl_2", 96, (3, 3)),
            _inception_conv(f"{at}.branch3x3dbl_3", 96, (3, 3), stride=2),
        ),
        _SHRINK,
    )


def _inception_block_c(at: str, *, inner: int) -> Node:
    return branches(
        _inception_conv(f"{at}.branch1x1", 192),
        chain(
            _inception_conv(f"{at}.branch7x7_1", inner),
            _inception_same(f"{at}.branch7x7_2", inner, (1, 7)),
            _inception_same(f"{at}.branch7x7_3", 192, (7, 1)),
        ),
        chain(
            _inception_conv(f"{at}.branch7x7dbl_1", inner),
            _inception_same(f"{at}.branch7x7dbl_2", inner, (7, 1)),
            _inception_same(f"{at}.branch7x7dbl_3", inner, (1, 7)),
            _inception_same(f"{at}.branch7x7dbl_4", inner, (7, 1)),
            _inception_same(f"{at}.branch7x7dbl_5", 192, (1, 7)),
        ),
        chain(_SMOOTH, _inception_conv(f"{at}.branch_pool", 192)),
    )


def _inception_block_d(at: str) -> Node:
    return branches(
        chain(_inception_conv(f"{at}.branch3x3_1", 192), _inception_conv(f"{at}.branch3x3_2", 320, (3, 3), stride=2)),
        chain(
            _inception_conv(f"{at}.branch7x7x3_1", 192),
            _inception_same(f"{at}.branch7x7x3_2", 192, (1, 7)),
            _inception_same(f"{at}.branch7x7x3_3", 192, (7, 1)),
            _inception_conv(f"{at}.branch7x7x3_4", 192, (3, 3), stride=2),
        ),
        _SHRINK,
    )


def _inception_block_e(at: str) -> Node:
    return branches(
        _inception_conv(f"{at}.branch1x1", 320),
        chain(
            _inception_conv(f"{at}.branch3x3_1", 384),
            branches(
                _inception_same(f"{at}.branch3x3_2a", 384, (1, 3)), _inception_same(f"{at}.branch3x3_2b", 384, (3, 1))
            ),
        ),
        chain(
            _inception_conv(f"{at}.branch3x3dbl_1", 448),
            _inception_same(f"{at}.branch3x3dbl_2", 384, (3, 3)),
            branches(
                _inception_same(f"{at}.branch3x3dbl_3a", 384, (1, 3)),
                _inception_same(f"{at}.branch3x3dbl_3b", 384, (3, 1)),
            ),
        ),
        chain(_SMOOTH, _inception_conv(f"{at}.branch_pool", 192)),
    )


def _inception_same(name: str, out: int, kernel: Pair) -> Conv:
    """Return a convolution with padding that keeps height and width."""
    return _inception_conv(name, out, kernel, padding=(kernel[0] // 2, kernel[1] // 2))


def _inception_conv(name: str, out: int, kernel: Pair = (1, 1), *, stride: int = 1, padding: Pair = (0, 0)) -> Conv:
    return Conv(
        name=f"{name}.conv",
        out=out,
        kernel=kernel,
        stride=stride,
        padding=padding,
        bias=False,
        norm=f"{name}.bn",
    )


def resnet50(size: Size) -> Network:
    return _resnet(size, depths=(3, 4, 6, 3))


def resnet152(size: Size) -> Network:
    return _resnet(size, depths=(3, 8, 36, 3))


def _resnet(size: Size, *, depths: tuple[int, ...]) -> Network:
    return _network(
        size,
        224,
        _res_conv("conv1", "bn1", 64, 7, stride=2),
        *(() if size is Size.CIFAR else (Pool(pooling=Pooling.MAX, kernel=3, stride=2, padding=1),)),
        *(_res_stage(number, depth) for number, depth in enumerate(depths, start=1)),
        GlobalPool(),
        Linear(name="fc", out=_classes(size), relu=False),
    )


def _res_stage(number: int, depth: int) -> Node:
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
            _res_conv(f"{at}.conv1", f"{at}.bn1", width, 1),
            _res_conv(f"{at}.conv2", f"{at}.bn2", width, 3, stride=stride),
            _res_conv(f"{at}.conv3", f"{at}.bn3", out, 1, relu=False),
        ),
        # The first block of a stage changes the shape, so its shortcut must too.
        _res_conv(f"{at}.downsample.0", f"{at}.downsample.1", out, 1, stride=stride, relu=False) if is_first else None,
    )


def _res_conv(name: str, norm: str, out: int, kernel: int, *, stride: int = 1, relu: bool = True) -> Conv:
    return square_conv(name, out, kernel, stride=stride, bias=False, norm=norm, relu=relu)
