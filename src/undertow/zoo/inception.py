"""Inception-V3 (Szegedy et al., 2015) with its auxiliary head; names and shapes are torchvision's."""

from __future__ import annotations

from undertow.zoo.network import (
    AuxiliaryHead,
    Conv,
    GlobalPool,
    Linear,
    Network,
    Node,
    Pair,
    Pool,
    Pooling,
    Size,
    branches,
    chain,
)

_SHRINK = Pool(pooling=Pooling.MAX, kernel=3, stride=2)
_SMOOTH = Pool(pooling=Pooling.AVERAGE, kernel=3, stride=1, padding=1)


def inception_v3(size: Size) -> Network:
    small = size is Size.CIFAR
    classes = 10 if small else 1000
    shrink = () if small else (_SHRINK,)
    return Network(
        input=(3, 32, 32) if small else (3, 299, 299),
        body=chain(
            _conv("Conv2d_1a_3x3", 32, (3, 3), stride=2),
            _conv("Conv2d_2a_3x3", 32, (3, 3)),
            _same("Conv2d_2b_3x3", 64, (3, 3)),
            *shrink,
            _conv("Conv2d_3b_1x1", 80),
            _conv("Conv2d_4a_3x3", 192, (3, 3)),
            *shrink,
            _block_a("Mixed_5b", pooled=32),
            _block_a("Mixed_5c", pooled=64),
            _block_a("Mixed_5d", pooled=64),
            _block_b("Mixed_6a"),
            _block_c("Mixed_6b", inner=128),
            _block_c("Mixed_6c", inner=160),
            _block_c("Mixed_6d", inner=160),
            _block_c("Mixed_6e", inner=192),
            AuxiliaryHead(_head("AuxLogits", classes, small=small)),
            _block_d("Mixed_7a"),
            _block_e("Mixed_7b"),
            _block_e("Mixed_7c"),
            GlobalPool(),
            Linear(name="fc", out=classes, relu=False),
        ),
    )


def _head(at: str, classes: int, *, small: bool) -> Node:
    pool = () if small else (Pool(pooling=Pooling.AVERAGE, kernel=5, stride=3),)
    return chain(
        *pool,
        _conv(f"{at}.conv0", 128),
        _conv(f"{at}.conv1", 768, (5, 5)),
        GlobalPool(),
        Linear(name=f"{at}.fc", out=classes, relu=False),
    )


def _block_a(at: str, *, pooled: int) -> Node:
    return branches(
        _conv(f"{at}.branch1x1", 64),
        chain(_conv(f"{at}.branch5x5_1", 48), _same(f"{at}.branch5x5_2", 64, (5, 5))),
        chain(
            _conv(f"{at}.branch3x3dbl_1", 64),
            _same(f"{at}.branch3x3dbl_2", 96, (3, 3)),
            _same(f"{at}.branch3x3dbl_3", 96, (3, 3)),
        ),
        chain(_SMOOTH, _conv(f"{at}.branch_pool", pooled)),
    )


def _block_b(at: str) -> Node:
    return branches(
        _conv(f"{at}.branch3x3", 384, (3, 3), stride=2),
        chain(
            _conv(f"{at}.branch3x3dbl_1", 64),
            _same(f"{at}.branch3x3dbl_2", 96, (3, 3)),
            _conv(f"{at}.branch3x3dbl_3", 96, (3, 3), stride=2),
        ),
        _SHRINK,
    )


def _block_c(at: str, *, inner: int) -> Node:
    return branches(
        _conv(f"{at}.branch1x1", 192),
        chain(
            _conv(f"{at}.branch7x7_1", inner),
            _same(f"{at}.branch7x7_2", inner, (1, 7)),
            _same(f"{at}.branch7x7_3", 192, (7, 1)),
        ),
        chain(
            _conv(f"{at}.branch7x7dbl_1", inner),
            _same(f"{at}.branch7x7dbl_2", inner, (7, 1)),
            _same(f"{at}.branch7x7dbl_3", inner, (1, 7)),
            _same(f"{at}.branch7x7dbl_4", inner, (7, 1)),
            _same(f"{at}.branch7x7dbl_5", 192, (1, 7)),
        ),
        chain(_SMOOTH, _conv(f"{at}.branch_pool", 192)),
    )


def _block_d(at: str) -> Node:
    return branches(
        chain(_conv(f"{at}.branch3x3_1", 192), _conv(f"{at}.branch3x3_2", 320, (3, 3), stride=2)),
        chain(
            _conv(f"{at}.branch7x7x3_1", 192),
            _same(f"{at}.branch7x7x3_2", 192, (1, 7)),
            _same(f"{at}.branch7x7x3_3", 192, (7, 1)),
            _conv(f"{at}.branch7x7x3_4", 192, (3, 3), stride=2),
        ),
        _SHRINK,
    )


def _block_e(at: str) -> Node:
    return branches(
        _conv(f"{at}.branch1x1", 320),
        chain(
            _conv(f"{at}.branch3x3_1", 384),
            branches(_same(f"{at}.branch3x3_2a", 384, (1, 3)), _same(f"{at}.branch3x3_2b", 384, (3, 1))),
        ),
        chain(
            _conv(f"{at}.branch3x3dbl_1", 448),
            _same(f"{at}.branch3x3dbl_2", 384, (3, 3)),
            branches(_same(f"{at}.branch3x3dbl_3a", 384, (1, 3)), _same(f"{at}.branch3x3dbl_3b", 384, (3, 1))),
        ),
        chain(_SMOOTH, _conv(f"{at}.branch_pool", 192)),
    )


def _same(name: str, out: int, kernel: Pair) -> Conv:
    """Padded, so that height and width stay."""
    return _conv(name, out, kernel, padding=(kernel[0] // 2, kernel[1] // 2))


def _conv(name: str, out: int, kernel: Pair = (1, 1), *, stride: int = 1, padding: Pair = (0, 0)) -> Conv:
    return Conv(
        name=f"{name}.conv",
        out=out,
        kernel=kernel,
        stride=stride,
        padding=padding,
        bias=False,
        norm=f"{name}.bn",
    )
