"""AlexNet (Krizhevsky et al., 2012) with its two groups, as in Caffe's reference model."""

from __future__ import annotations

from undertow.zoo.network import Conv, Linear, Network, Pool, Pooling, Size, chain

_POOL = Pool(pooling=Pooling.MAX, kernel=3, stride=2)


def alexnet(size: Size) -> Network:
    small = size is Size.CIFAR
    return Network(
        input=(3, 32, 32) if small else (3, 227, 227),
        body=chain(
            Conv(name="conv1", out=96, kernel=(11, 11), stride=2, padding=(5, 5))  # 32 -> 16
            if small
            else chain(Conv(name="conv1", out=96, kernel=(11, 11), stride=4), _POOL),  # 227 -> 55 -> 27
            Conv(name="conv2", out=256, kernel=(5, 5), padding=(2, 2), groups=2),
            _POOL,
            Conv(name="conv3", out=384, kernel=(3, 3), padding=(1, 1)),
            Conv(name="conv4", out=384, kernel=(3, 3), padding=(1, 1), groups=2),
            Conv(name="conv5", out=256, kernel=(3, 3), padding=(1, 1), groups=2),
            _POOL,
            Linear(name="fc6", out=4096),
            Linear(name="fc7", out=4096),
            Linear(name="fc8", out=10 if small else 1000, relu=False),
        ),
    )
